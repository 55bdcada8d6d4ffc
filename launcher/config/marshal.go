package config

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Marshal writes the configuration as a train.yaml that gives every key. Load
// reads it back to an equal configuration wherever it is done, for no variable,
// default or file name is left to work out.
func (c *Config) Marshal() ([]byte, error) {
	var b bytes.Buffer
	err := c.writeSection(&b, root, "")
	return b.Bytes(), err
}

func (c *Config) writeSection(b *bytes.Buffer, s *field, indent string) error {
	for _, f := range s.children {
		if f.describesShape() && c.Model.Path != "" {
			continue // the folder says it; naming it here would be refused
		}
		if f.isSection() {
			fmt.Fprintf(b, "%s%s:\n", indent, f.key)
			if err := c.writeSection(b, f, indent+"  "); err != nil {
				return err
			}
			continue
		}
		text, err := yamlValue(f.in(c))
		if err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		fmt.Fprintf(b, "%s%s: %s\n", indent, f.key, text)
	}
	return nil
}

// yamlValue spells v as YAML on one line.
func yamlValue(v reflect.Value) (string, error) {
	switch v.Kind() {
	case reflect.Slice:
		parts := make([]string, v.Len())
		for i := range parts {
			var err error
			if parts[i], err = yamlValue(v.Index(i)); err != nil {
				return "", err
			}
		}
		return "[" + strings.Join(parts, ", ") + "]", nil
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return "", fmt.Errorf("%q is not valid UTF-8, which YAML needs", v.String())
		}
		return quote(escape(v.String())), nil
	}
	return text(v), nil
}

// quote writes s in YAML's double quotes.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
