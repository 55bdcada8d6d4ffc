package dl

import "fmt"

func checkStruct(at int, s []byte, args int) {
	if at < 0 || at > args || args > 6 || len(s) <= 16 || len(s)%8 != 0 {
		panic(fmt.Sprintf("dl: a struct of %d bytes as argument %d beside %d others", len(s), at, args))
	}
}
