module crash

go 1.19
