package jinja

import "strings"

// postfix reads what stands right behind an operand: .x, [x] and calls.
func (p *parser) postfix(e expr) expr {
	for {
		tok := p.peek()
		switch tok.kind {
		case ".":
			p.deeper()
			p.take()
			e = p.attribute(e)
		case "[":
			p.deeper()
			p.take()
			e = p.subscript(e, tok)
		case "(":
			p.deeper()
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) attribute(of expr) expr {
	tok := p.take()
	switch tok.kind {
	case kindInteger:
		return &subscript{at(tok.at), of, &constant{at(tok.at), tok.value}}
	case kindName:
		if strings.HasPrefix(tok.text, "__") {
			p.unsupported(tok.at, "attribute %s", tok.text)
		}
		return &attribute{at(tok.at), of, tok.text}
	}
	p.fail(tok.at, "expected a name or a number behind the dot, found %s", describe(tok))
	return nil
}

func (p *parser) subscript(of expr, open token) expr {
	s := &slice{at: at(open.at), of: of}
	if !p.is(":") {
		if p.is("]") {
			p.fail(open.at, "this subscript is empty")
		}
		index := p.expression()
		if p.is(",") {
			p.unsupported(p.peek().at, "several subscripts at once")
		}
		if p.skip("]") {
			return &subscript{at(open.at), of, index}
		}
		s.start = index
	}
	p.expect(":")
	if !p.is(":") && !p.is("]") {
		s.stop = p.expression()
	}
	if p.skip(":") && !p.is("]") {
		s.step = p.expression()
	}
	p.expect("]")
	return s
}

func (p *parser) call(of expr) expr {
	tok := p.peek()
	if a, ok := of.(*attribute); ok {
		if kinds := missingMethods[a.name]; kinds != "" {
			p.unsupported(int(a.at), "method %s of %s", a.name, kinds)
		}
	}
	return &call{at(tok.at), of, p.args()}
}

// args reads a call's arguments with their brackets.
func (p *parser) args() args {
	p.expect("(")
	var a args
	for more := false; !p.skip(")"); more = true {
		if more {
			p.expect(",")
			if p.skip(")") {
				break
			}
		}
		tok := p.peek()
		if tok.kind == "*" || tok.kind == "**" {
			p.unsupported(tok.at, "%s in a call", tok.kind)
		}
		if tok.kind == kindName && p.tokens[p.next+1].kind == "=" {
			p.take()
			p.take()
			a.named = append(a.named, param{tok.text, p.expression()})
			continue
		}
		if len(a.named) > 0 {
			p.fail(tok.at, "an argument without a name follows one with a name")
		}
		a.positional = append(a.positional, p.expression())
	}
	return a
}

// filters reads filters, tests and calls behind an operand.
func (p *parser) filters(e expr) expr {
	for {
		tok := p.peek()
		switch {
		case tok.kind == "|":
			p.deeper()
			p.take()
			e = p.filter(e)
		case p.isWord("is"):
			p.deeper()
			p.take()
			e = p.test(e)
		case tok.kind == "(":
			p.deeper()
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) filter(of expr) expr {
	word := p.dotted()
	f := &filterExpr{at: at(word.at), of: of, name: word.text}
	if _, ok := filters[word.text]; !ok {
		p.unsupported(word.at, "filter %s", word.text)
	}
	if p.is("(") {
		f.args = p.args()
	}
	return f
}

// dotted reads the name of a filter or test.
func (p *parser) dotted() token {
	word := p.expect(kindName)
	for p.skip(".") {
		word.text += "." + p.expect(kindName).text
	}
	return word
}

func (p *parser) test(of expr) expr {
	negated := p.skipWord("not")
	word := p.dotted()
	if _, ok := tests[word.text]; !ok {
		p.unsupported(word.at, "test %s", word.text)
	}
	t := &testExpr{at: at(word.at), of: of, name: word.text}
	switch next := p.peek(); next.kind {
	case "(":
		t.args = p.args()
	case kindName, kindString, kindInteger, kindFloat, "[", "{":
		if p.isWord("else", "or", "and") {
			break
		}
		if p.isWord("is") {
			p.fail(next.at, "tests can't be chained: write x is a and x is b")
		}
		t.args.positional = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &not{at(word.at), t}
	}
	return t
}

// target reads what set and for assign to: a name, names with commas between
// them, with namespaces also x.y. end is the word behind it.
func (p *parser) target(namespaces bool, end ...string) target {
	start := p.peek().at
	items := []target{p.oneTarget(namespaces)}
	if !p.is(",") {
		return items[0]
	}
	for p.skip(",") {
		if p.is("=") || p.is(kindTagEnd) || p.isWord(end...) {
			break
		}
		items = append(items, p.oneTarget(namespaces))
	}
	return &tupleTarget{at(start), items}
}

func (p *parser) oneTarget(namespaces bool) target {
	before := p.deeper()
	defer func() { p.nesting = before }()
	if p.skip("(") {
		t := p.target(namespaces)
		p.expect(")")
		return t
	}
	tok := p.expect(kindName)
	switch tok.text {
	case "true", "false", "none", "True", "False", "None":
		p.fail(tok.at, "%s can't be assigned to", tok.text)
	}
	if p.is(".") && namespaces {
		p.take()
		return &namespaceTarget{at(tok.at), tok.text, p.expect(kindName).text}
	}
	return &name{at(tok.at), tok.text}
}

func assigns(t target, to string) bool {
	switch t := t.(type) {
	case *name:
		return t.name == to
	case *tupleTarget:
		for _, item := range t.items {
			if assigns(item, to) {
				return true
			}
		}
	}
	return false
}
