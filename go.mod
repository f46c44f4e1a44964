module weir.dev/weir

go 1.26
