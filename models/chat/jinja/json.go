package jinja

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ParseJSON reads one JSON value with the types that Python gives it: whole
// numbers are int64, others float64, objects a [*Dict] in the order of their
// keys, arrays a [List]. Of a key that comes twice the last value holds. Text
// that is not valid UTF-8, half a surrogate pair, and integers of more than 64
// bits are errors.
func ParseJSON(text []byte) (Value, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("the JSON is not valid UTF-8")
	}
	if err := surrogates(string(text)); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	v, err := readJSON(dec, 0)
	if errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("there is more behind the JSON value, at byte %d", dec.InputOffset())
	}
	return v, nil
}

func readJSON(dec *json.Decoder, depth int) (Value, error) {
	if depth > maxDepth/2 {
		return nil, fmt.Errorf("the JSON is nested more than %d deep", maxDepth/2)
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case json.Number:
		return jsonNumber(string(tok))
	case json.Delim:
		if tok == '[' {
			return readList(dec, depth)
		}
		return readDict(dec, depth)
	default:
		return tok, nil
	}
}

func jsonNumber(text string) (Value, error) {
	if strings.ContainsAny(text, ".eE") {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("the number %s is out of range", text)
		}
		return x, nil
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the integer %s has more than 64 bits", text)
	}
	return i, nil
}

func readList(dec *json.Decoder, depth int) (Value, error) {
	items := List{}
	for dec.More() {
		v, err := readJSON(dec, depth+1)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	_, err := dec.Token()
	return items, err
}

func readDict(dec *json.Decoder, depth int) (Value, error) {
	d := &Dict{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		v, err := readJSON(dec, depth+1)
		if err != nil {
			return nil, err
		}
		d.Set(key.(string), v)
	}
	_, err := dec.Token()
	return d, err
}

// surrogates fails where an escape such as \ud83d lacks its other half: it stands
// for no character.
func surrogates(text string) error {
	unit := func(s string) (uint64, bool) {
		if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
			return 0, false
		}
		u, err := strconv.ParseUint(s[2:6], 16, 16)
		return u, err == nil
	}
	for i := strings.IndexByte(text, '\\'); i >= 0 && i < len(text); {
		size := 2
		if high, ok := unit(text[i:]); ok && high >= 0xd800 && high < 0xe000 {
			low, ok := unit(text[i+6:])
			if high >= 0xdc00 || !ok || low < 0xdc00 || low >= 0xe000 {
				return fmt.Errorf("%s at byte %d is half a character", text[i:i+6], i)
			}
			size = 12
		}
		if i += size; i >= len(text) {
			return nil
		}
		n := strings.IndexByte(text[i:], '\\')
		if n < 0 {
			return nil
		}
		i += n
	}
	return nil
}
