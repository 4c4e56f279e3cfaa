module go_pie

go 1.19
