package jinja

import (
	"slices"
	"strings"
)

// expression reads one expression, x if y else z among them.
func (p *parser) expression() expr {
	before := p.deeper()
	defer func() { p.nesting = before }()
	e := p.or()
	for p.isWord("if") {
		p.deeper()
		c := &choice{at: at(p.take().at), yes: e, test: p.or()}
		if p.skipWord("else") {
			c.no = p.expression()
		}
		e = c
	}
	return e
}

// tuple reads an expression, or several with commas between them. Without
// choices, the word if ends it. ends are further words that end it behind a
// comma.
func (p *parser) tuple(choices bool, ends ...string) expr {
	start := p.peek().at
	one := p.or
	if choices {
		one = p.expression
	}
	if !p.is(",") {
		e := one()
		if !p.is(",") {
			return e
		}
		return p.tupleFrom(start, []expr{e}, one, ends)
	}
	p.fail(start, "expected an expression, found ,")
	return nil
}

func (p *parser) tupleFrom(start int, items []expr, one func() expr, ends []string) expr {
	for p.skip(",") {
		if p.is(kindPrintEnd) || p.is(kindTagEnd) || p.is(")") || p.isWord(ends...) {
			break
		}
		items = append(items, one())
	}
	return &tupleExpr{at(start), items}
}

func (p *parser) or() expr {
	before := p.deeper()
	defer func() { p.nesting = before }()
	e := p.and()
	for p.isWord("or") {
		p.deeper()
		e = &logic{at(p.take().at), e, p.and(), true}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.isWord("and") {
		p.deeper()
		e = &logic{at(p.take().at), e, p.not(), false}
	}
	return e
}

func (p *parser) not() expr {
	if p.isWord("not") {
		before := p.deeper()
		e := &not{at(p.take().at), p.not()}
		p.nesting = before
		return e
	}
	return p.compare()
}

func (p *parser) compare() expr {
	c := &comparison{at: at(p.peek().at), left: p.sum()}
	for {
		tok := p.peek()
		op := tok.text
		switch {
		case slices.Contains([]kind{"==", "!=", "<", "<=", ">", ">="}, tok.kind), p.isWord("in"):
			p.take()
		case p.isWord("not") && p.tokens[p.next+1].text == "in" && p.tokens[p.next+1].kind == kindName:
			p.take()
			p.take()
			op = "not in"
		default:
			if c.rest == nil {
				return c.left
			}
			return c
		}
		if c.rest == nil {
			c.at = at(tok.at)
		}
		c.rest = append(c.rest, operand{op, p.sum()})
	}
}

func (p *parser) sum() expr   { return p.binary(p.joined, "+", "-") }
func (p *parser) term() expr  { return p.binary(p.power, "*", "/", "//", "%") }
func (p *parser) power() expr { return p.binary(func() expr { return p.unary(true) }, "**") }

// binary reads a chain of operators of one rank; they group from the left, ** too.
func (p *parser) binary(operand func() expr, ops ...kind) expr {
	e := operand()
	for slices.Contains(ops, p.peek().kind) {
		p.deeper()
		tok := p.take()
		e = &binary{at(tok.at), tok.kind, e, operand()}
	}
	return e
}

func (p *parser) joined() expr {
	j := &joined{at: at(p.peek().at), parts: []expr{p.term()}}
	for p.skip("~") {
		j.parts = append(j.parts, p.term())
	}
	if len(j.parts) == 1 {
		return j.parts[0]
	}
	return j
}

// unary reads a signed or plain operand. Filters apply to the signed value, what
// is right behind the operand (.x, [x], a call) to the value without its sign.
func (p *parser) unary(filters bool) expr {
	var e expr
	tok := p.peek()
	if tok.kind == "-" || tok.kind == "+" {
		p.take()
		n := &negative{at: at(tok.at), sign: 1}
		if tok.kind == "-" {
			n.sign = -1
		}
		before := p.deeper()
		n.of = p.unary(false)
		p.nesting = before
		e = n
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if filters {
		e = p.filters(e)
	}
	return e
}

func (p *parser) primary() expr {
	tok := p.take()
	where := at(tok.at)
	switch tok.kind {
	case kindName:
		switch tok.text {
		case "true", "True":
			return &constant{where, true}
		case "false", "False":
			return &constant{where, false}
		case "none", "None":
			return &constant{where, nil}
		}
		p.checkName(tok)
		return &name{where, tok.text}
	case kindString:
		var text strings.Builder
		text.WriteString(tok.value.(string))
		for p.is(kindString) {
			text.WriteString(p.take().value.(string))
		}
		return &constant{where, text.String()}
	case kindInteger, kindFloat:
		return &constant{where, tok.value}
	case "(":
		if p.skip(")") {
			return &tupleExpr{where, nil}
		}
		e := p.tuple(true)
		p.expect(")")
		return e
	case "[":
		return &listExpr{where, p.items("]")}
	case "{":
		return p.dict(where)
	}
	p.fail(tok.at, "expected an expression, found %s", describe(tok))
	return nil
}

// checkName refuses names that mean something in the language but nothing here.
func (p *parser) checkName(tok token) {
	switch tok.text {
	case "lipsum", "cycler", "joiner", "self", "super":
		if p.is("(") || p.is(".") {
			p.unsupported(tok.at, "function %s", tok.text)
		}
	case "varargs", "kwargs", "caller":
		if p.inMacro {
			p.unsupported(tok.at, "%s in a macro", tok.text)
		}
	}
}

// items reads expressions with commas between them up to end, which it takes.
func (p *parser) items(end kind) []expr {
	var items []expr
	for !p.skip(end) {
		if len(items) > 0 {
			p.expect(",")
			if p.skip(end) {
				break
			}
		}
		items = append(items, p.expression())
	}
	return items
}

func (p *parser) dict(where at) expr {
	d := &dictExpr{at: where}
	for !p.skip("}") {
		if len(d.keys) > 0 {
			p.expect(",")
			if p.skip("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expression())
		p.expect(":")
		d.values = append(d.values, p.expression())
	}
	return d
}
