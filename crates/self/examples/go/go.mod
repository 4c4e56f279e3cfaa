module tiexec.example/huge

go 1.19
