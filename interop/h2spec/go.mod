module firetrail/h2spec

go 1.21

require github.com/summerwind/h2spec v2.2.1+incompatible
