// Package rows reads the rows of files and understands them: rows.go finds them in
// JSON, JSONL and gzip, fields.go reads their fields, and formats.go, conversations.go
// and plain.go turn those of known formats into samples.
package rows

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// A Row is a JSON object of a file, or the whole of a text.
type Row struct {
	Path string
	Line int // on which it begins, from 1
	Raw  []byte
}

// Errorf is an error that names the row.
func (r Row) Errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", r.Path, r.Line, fmt.Errorf(format, args...))
}

// maxRow bounds a row: a file of another kind is refused before it fills the memory.
const maxRow = 1 << 28

// Read calls each with the rows of a file: the elements of a JSON array, or a
// JSON value a line, blank lines aside; what the file's first character is decides.
// A file that begins as gzip does is unpacked. All bytes of the file go to sum.
// The rows' memory is each's to keep. An error of each ends it and is returned.
func Read(path string, sum io.Writer, each func(Row) error) error {
	return unpacked(path, sum, func(in *bufio.Reader) error {
		line, first, err := skipSpace(in)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", path, err)
		case first == '[':
			return readArray(path, in, line, each)
		}
		return readLines(path, in, line, each)
	})
}

// ReadWhole calls each with one row, all of a file's text.
func ReadWhole(path string, sum io.Writer, each func(Row) error) error {
	return unpacked(path, sum, func(in *bufio.Reader) error {
		raw, err := io.ReadAll(in)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(raw) == 0 {
			return nil
		}
		return each(Row{path, 1, raw})
	})
}

// unpacked opens a file for read, without gzip and without a byte order mark.
func unpacked(path string, sum io.Writer, read func(*bufio.Reader) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() // read only: nothing can be lost
	const size = 1 << 20
	whole := io.TeeReader(file, sum)
	in := bufio.NewReaderSize(whole, size)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("%s: gzip: %w", path, err)
		}
		in = bufio.NewReaderSize(inGzip{z}, size)
	}
	if mark, _ := in.Peek(3); bytes.Equal(mark, []byte("\xef\xbb\xbf")) {
		in.Discard(3) // just seen: cannot fail
	}
	if err := read(in); err != nil {
		return err
	}
	// What a reader leaves behind the end belongs to the sum, too.
	if _, err := io.Copy(io.Discard, whole); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// inGzip says of an error that it is not the file's but the packing's.
type inGzip struct{ z *gzip.Reader }

func (g inGzip) Read(p []byte) (int, error) {
	n, err := g.z.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("gzip: %w", err)
	}
	return n, err
}

// skipSpace leaves in at the first byte that is no white space.
func skipSpace(in *bufio.Reader) (line int, first byte, err error) {
	for line = 1; ; {
		b, err := in.ReadByte()
		switch {
		case err != nil:
			return line, 0, err
		case b == '\n':
			line++
		case b != ' ' && b != '\t' && b != '\r':
			return line, b, in.UnreadByte()
		}
	}
}

func readLines(path string, in *bufio.Reader, line int, each func(Row) error) error {
	for ; ; line++ {
		var raw []byte
		var err error
		for more := true; more; {
			var part []byte
			part, err = in.ReadSlice('\n')
			raw = append(raw, part...)
			more = errors.Is(err, bufio.ErrBufferFull)
			if len(raw) > maxRow {
				return fmt.Errorf("%s:%d: a line of more than %d MiB: is this a file of JSON, an object a line?", path, line, maxRow>>20)
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s:%d: %w", path, line, err)
		}
		if raw = bytes.TrimSpace(raw); len(raw) > 0 {
			if err := each(Row{path, line, raw}); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

func readArray(path string, in *bufio.Reader, line int, each func(Row) error) error {
	lines := &lineCounter{in: in, line: line}
	dec := json.NewDecoder(lines)
	failed := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%s:%d: the file ends within the array that it begins with", path, lines.at(lines.read))
		}
		return fmt.Errorf("%s:%d: what begins here is not valid JSON: %w", path, lines.at(dec.InputOffset()), err)
	}
	if _, err := dec.Token(); err != nil {
		return failed(err)
	}
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return failed(err)
		}
		if err := each(Row{path, lines.at(dec.InputOffset() - int64(len(raw))), raw}); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return failed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s:%d: something stands behind the end of the array", path, lines.at(dec.InputOffset()))
	}
	return nil
}

// lineCounter knows the lines of what was read through it.
type lineCounter struct {
	in       io.Reader
	read     int64   // bytes
	newlines []int64 // their offsets, from the last that at was asked for on
	line     int     // of the first byte behind those that are no longer listed
}

func (c *lineCounter) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	for i, b := range p[:n] {
		if b == '\n' {
			c.newlines = append(c.newlines, c.read+int64(i))
		}
	}
	c.read += int64(n)
	return n, err
}

// at is the line of an offset, which must not go back.
func (c *lineCounter) at(offset int64) int {
	n := 0
	for n < len(c.newlines) && c.newlines[n] < offset {
		n++
	}
	c.line, c.newlines = c.line+n, c.newlines[n:]
	return c.line
}

// object reads r as a JSON object.
func (r Row) object() (object, error) {
	if err := r.CheckText(); err != nil {
		return nil, err
	}
	if r.Raw[0] != '{' && json.Valid(r.Raw) {
		return nil, r.Errorf("a row must be a JSON object, and this is %s", kind(r.Raw))
	}
	var o object
	if err := json.Unmarshal(r.Raw, &o); err != nil {
		return nil, r.Errorf("not valid JSON: %w (a file holds an object a line, or one array of objects)", err)
	}
	return o, nil
}

// CheckText refuses bytes that are no text: the JSON reader would put others in
// their place.
func (r Row) CheckText() error {
	for i, at := 0, r.Raw; len(at) > 0; {
		c, n := utf8.DecodeRune(at)
		if c == utf8.RuneError && n == 1 {
			line := r.Line + bytes.Count(r.Raw[:i], []byte("\n"))
			return Row{r.Path, line, nil}.Errorf("not valid UTF-8: byte %#02x, %d bytes into the row", at[0], i)
		}
		i, at = i+n, at[n:]
	}
	return nil
}

// kind says what a JSON value is.
func kind(raw json.RawMessage) string {
	switch {
	case len(raw) == 0:
		return "nothing"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "a list"
	case raw[0] == '"':
		return "text"
	case raw[0] == 'n':
		return "null"
	case raw[0] == 't' || raw[0] == 'f':
		return "true or false"
	}
	return "a number"
}
