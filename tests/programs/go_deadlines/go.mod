module go_deadlines

go 1.19
