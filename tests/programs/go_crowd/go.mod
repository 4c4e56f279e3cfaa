module crowd

go 1.19
