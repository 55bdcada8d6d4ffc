package topology

import (
	"bytes"
	"fmt"
	"strings"
)

// element is one of an XML file, with what is in it.
type element struct {
	name  string
	attrs []attr
	subs  []*element
	line  int
}

type attr struct{ name, value string }

func (e *element) value(name string) (string, bool) {
	for _, a := range e.attrs {
		if a.name == name {
			return a.value, true
		}
	}
	return "", false
}

func (e *element) named(name string) bool {
	v, _ := e.value("name")
	return v == name
}

func (e *element) set(name, value string) {
	e.attrs = append(e.attrs, attr{name, value})
}

// Limits of NCCL's reader.
const (
	mostText  = 254 // bytes of a name or a value
	mostAttrs = 16
	mostSubs  = 640
)

// parser reads what NCCL's own reader reads of XML, which is little: elements with
// attributes in quotes, one space between them, and comments. What is more is refused,
// for NCCL would refuse it too, when the first communicator is made, and not say where.
type parser struct {
	text []byte
	at   int
}

func (p *parser) line() int { return 1 + bytes.Count(p.text[:min(p.at, len(p.text))], []byte("\n")) }

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", p.line(), fmt.Sprintf(format, args...))
}

// parseXML reads the one element that a file consists of.
func parseXML(text []byte) (*element, error) {
	p := &parser{text: text}
	top := &element{}
	if err := p.content(top); err != nil {
		return nil, err
	}
	if len(top.subs) != 1 {
		return nil, fmt.Errorf("%d elements at the top, want one, <system>", len(top.subs))
	}
	return top.subs[0], nil
}

// content reads what is in e, and its end.
func (p *parser) content(e *element) error {
	for {
		if err := p.skip(); err != nil {
			return err
		}
		rest := p.text[p.at:]
		switch {
		case len(rest) == 0 && e.name == "":
			return nil
		case len(rest) == 0:
			return p.errorf("the file ends within <%s> of line %d", e.name, e.line)
		case bytes.HasPrefix(rest, []byte("</")):
			p.at += len("</")
			name, err := p.word()
			if err != nil {
				return err
			}
			if name != e.name || !p.take(">") {
				return p.errorf("</%s> where </%s> should be, for line %d", name, e.name, e.line)
			}
			return nil
		}
		sub, open, err := p.start()
		if err != nil {
			return err
		}
		if e.subs = append(e.subs, sub); len(e.subs) > mostSubs {
			return p.errorf("more than %d elements in <%s>, which NCCL does not take", mostSubs, e.name)
		}
		if open {
			if err := p.content(sub); err != nil {
				return err
			}
		}
	}
}

// skip passes space and comments.
func (p *parser) skip() error {
	for p.at < len(p.text) {
		rest := p.text[p.at:]
		switch {
		case rest[0] == ' ' || rest[0] == '\n' || rest[0] == '\r':
			p.at++
		case bytes.HasPrefix(rest, []byte("<!--")):
			end := bytes.Index(rest, []byte("-->"))
			if end < 0 {
				return p.errorf("a comment that does not end")
			}
			p.at += end + len("-->")
		case rest[0] == '\t':
			return p.errorf("a tab, which NCCL does not take: indent by spaces")
		case bytes.HasPrefix(rest, []byte("<?")), bytes.HasPrefix(rest, []byte("<!")):
			return p.errorf("%.9q, which NCCL does not take: begin with <system>", rest)
		case rest[0] != '<':
			return p.errorf("%.9q where an element should begin", rest)
		default:
			return nil
		}
	}
	return nil
}

func (p *parser) take(s string) bool {
	if !bytes.HasPrefix(p.text[p.at:], []byte(s)) {
		return false
	}
	p.at += len(s)
	return true
}

// start reads <name attribute="value" ...>, or the same that ends in />.
func (p *parser) start() (e *element, open bool, err error) {
	e = &element{line: p.line()}
	p.at += len("<")
	if e.name, err = p.word(); err != nil {
		return nil, false, err
	}
	for {
		for p.take(" ") {
		}
		switch {
		case p.take("/>"):
			return e, false, nil
		case p.take(">"):
			return e, true, nil
		}
		name, err := p.word()
		if err != nil {
			return nil, false, fmt.Errorf("%w, in <%s>", err, e.name)
		}
		if !p.take(`="`) && !p.take(`='`) {
			return nil, false, p.errorf("%s of <%s> has no value in quotes", name, e.name)
		}
		end := bytes.IndexByte(p.text[p.at:], p.text[p.at-1])
		if end < 0 || end > mostText {
			return nil, false, p.errorf("the value of %s of <%s> does not end within %d bytes", name, e.name, mostText)
		}
		e.set(name, string(p.text[p.at:p.at+end]))
		p.at += end + 1
		if len(e.attrs) > mostAttrs {
			return nil, false, p.errorf("<%s> has more than %d attributes, which NCCL leaves out", e.name, mostAttrs)
		}
	}
}

// word is a name.
func (p *parser) word() (string, error) {
	rest := p.text[p.at:]
	end := bytes.IndexFunc(rest, func(r rune) bool {
		return !(r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	})
	if end < 0 {
		end = len(rest)
	}
	if end == 0 || end > mostText {
		return "", p.errorf("%.9q where a name should be", rest)
	}
	p.at += end
	return string(rest[:end]), nil
}

// write writes e as NCCL does.
func (e *element) write(b *strings.Builder, indent int) {
	space := strings.Repeat(" ", indent)
	fmt.Fprintf(b, "%s<%s", space, e.name)
	for _, a := range e.attrs {
		// NCCL knows no escapes.
		fmt.Fprintf(b, ` %s="%s"`, a.name, strings.Map(func(r rune) rune {
			if r == '"' || r < ' ' {
				return '_'
			}
			return r
		}, a.value))
	}
	if len(e.subs) == 0 {
		b.WriteString("/>\n")
		return
	}
	b.WriteString(">\n")
	for _, s := range e.subs {
		s.write(b, indent+2)
	}
	fmt.Fprintf(b, "%s</%s>\n", space, e.name)
}
