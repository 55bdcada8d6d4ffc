package jinja

import (
	"fmt"
	"slices"
)

// maxNesting bounds how deep tags, brackets and chains of operators nest, and
// with it the depth of the evaluation's recursion.
const maxNesting = 400

// parser turns tokens into statements. Its methods end early by panicking with
// a fault, which parse alone turns into an error.
type parser struct {
	t       *Template
	tokens  []token
	next    int
	nesting int
	// What the tags around the current place are.
	inFor     bool // a for, with no macro or other block of its own between
	capturing bool // a block whose text is not written at its place
	inMacro   bool
}

type fault struct{ err error }

func (t *Template) parse(tokens []token) (err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case fault:
			err = e.err
		default:
			panic(e)
		}
	}()
	p := &parser{t: t, tokens: tokens}
	t.body, _ = p.block()
	return nil
}

func (p *parser) fail(at int, format string, args ...any) {
	panic(fault{p.t.errorAt(at, fmt.Errorf(format, args...))})
}

func (p *parser) unsupported(at int, format string, args ...any) {
	p.fail(at, "%w: "+format, append([]any{ErrUnsupported}, args...)...)
}

func (p *parser) peek() token { return p.tokens[p.next] }

func (p *parser) take() token {
	tok := p.tokens[p.next]
	if tok.kind != kindEnd {
		p.next++
	}
	return tok
}

func (p *parser) is(k kind) bool { return p.peek().kind == k }

func (p *parser) isWord(words ...string) bool {
	tok := p.peek()
	return tok.kind == kindName && slices.Contains(words, tok.text)
}

func (p *parser) skip(k kind) bool {
	if !p.is(k) {
		return false
	}
	p.next++
	return true
}

func (p *parser) skipWord(word string) bool {
	if !p.isWord(word) {
		return false
	}
	p.next++
	return true
}

func (p *parser) expect(k kind) token {
	tok := p.take()
	if tok.kind != k {
		p.fail(tok.at, "expected %s, found %s", k, describe(tok))
	}
	return tok
}

func (p *parser) expectWord(word string) {
	if tok := p.take(); tok.kind != kindName || tok.text != word {
		p.fail(tok.at, "expected %q, found %s", word, describe(tok))
	}
}

func describe(tok token) string {
	switch tok.kind {
	case kindName, kindString, kindInteger, kindFloat:
		return fmt.Sprintf("%s %.40s", tok.kind, tok.text)
	}
	return string(tok.kind)
}

// deeper counts one level of nesting; the caller restores p.nesting to what
// deeper gives back.
func (p *parser) deeper() (before int) {
	before = p.nesting
	if p.nesting++; p.nesting > maxNesting {
		p.fail(p.peek().at, "%w: more than %d levels of nesting", ErrLimit, maxNesting)
	}
	return before
}

// block reads statements up to a tag that has one of the names ends, or without
// ends up to the template's end. It takes that tag's name, which it gives back,
// and leaves the rest of the tag.
func (p *parser) block(ends ...string) ([]stmt, string) {
	before := p.deeper()
	defer func() { p.nesting = before }()
	opened := p.peek().at
	body := []stmt{}
	for {
		switch tok := p.take(); tok.kind {
		case kindData:
			body = append(body, &textStmt{at(tok.at), tok.text})
		case kindPrintBegin:
			value := p.tuple(true)
			p.expect(kindPrintEnd)
			body = append(body, &printStmt{at(tok.at), value})
		case kindTagBegin:
			word := p.take()
			if word.kind != kindName {
				p.fail(word.at, "expected the name of a tag, found %s", describe(word))
			}
			if slices.Contains(ends, word.text) {
				return body, word.text
			}
			body = append(body, p.statement(word, ends))
		default: // the end
			if len(ends) > 0 {
				p.fail(opened, "the block that begins here has no end: expected {%% %s %%}", ends[len(ends)-1])
			}
			return body, ""
		}
	}
}
