package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// byteChars are the characters by which the vocabularies of byte-level tokenizers
// write bytes: printable ones of Latin-1 stand for themselves, the others for what
// follows U+0100, in their order.
var byteChars = func() (chars [256]rune) {
	next := rune(256)
	for b := range chars {
		if '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b {
			chars[b] = rune(b)
		} else {
			chars[b] = next
			next++
		}
	}
	return chars
}()

// charBytes is byteChars the other way; 0 and false for what is no byte.
var charBytes = func() map[rune]byte {
	m := map[rune]byte{}
	for b, r := range byteChars {
		m[r] = byte(b)
	}
	return m
}()

// isBytes says that each character of token stands for a byte.
func isBytes(token string) bool {
	return !strings.ContainsFunc(token, func(r rune) bool { _, ok := charBytes[r]; return !ok })
}

// charsToBytes gives the bytes that token stands for. A token with a character that
// stands for none, as an added one may have, stands for itself.
func charsToBytes(token string) string {
	if !isBytes(token) {
		return token
	}
	bytes := make([]byte, 0, utf8.RuneCountInString(token))
	for _, r := range token {
		bytes = append(bytes, charBytes[r])
	}
	return string(bytes)
}
