package jinja

// statement reads the rest of a tag whose name is word, and its block.
func (p *parser) statement(word token, ends []string) stmt {
	switch word.text {
	case "if":
		return p.ifTag(word)
	case "for":
		return p.forTag(word)
	case "set":
		return p.setTag(word)
	case "macro":
		return p.macroTag(word)
	case "generation":
		return p.generationTag(word)
	case "break", "continue":
		if !p.inFor {
			p.fail(word.at, "%s stands in no loop", word.text)
		}
		p.expect(kindTagEnd)
		if word.text == "break" {
			return &flowStmt{at(word.at), flowBreak}
		}
		return &flowStmt{at(word.at), flowContinue}
	case "include", "import", "from", "extends", "block", "call", "filter", "with", "autoescape", "do", "trans", "debug":
		p.unsupported(word.at, "tag %s", word.text)
	}
	if len(ends) > 0 {
		p.fail(word.at, "unknown tag %s; the block around it ends with {%% %s %%}", word.text, ends[len(ends)-1])
	}
	p.fail(word.at, "unknown tag %s", word.text)
	return nil
}

func (p *parser) ifTag(word token) stmt {
	s := &ifStmt{at: at(word.at)}
	for {
		test := p.tuple(false)
		p.expect(kindTagEnd)
		body, end := p.block("elif", "else", "endif")
		s.branches = append(s.branches, branch{test, body})
		switch end {
		case "elif":
			continue
		case "else":
			p.expect(kindTagEnd)
			s.otherwise, _ = p.block("endif")
		}
		p.expect(kindTagEnd)
		return s
	}
}

func (p *parser) forTag(word token) stmt {
	s := &forStmt{at: at(word.at), target: p.target(false, "in")}
	if assigns(s.target, "loop") {
		p.fail(word.at, "loop is the loop's own name: it can't be assigned to")
	}
	p.expectWord("in")
	s.items = p.tuple(false, "recursive")
	if p.skipWord("if") {
		s.test = p.expression()
	}
	if p.isWord("recursive") {
		p.unsupported(p.peek().at, "recursive loops")
	}
	p.expect(kindTagEnd)
	outer := p.inFor
	p.inFor = true
	body, end := p.block("else", "endfor")
	p.inFor = outer
	s.body = body
	if end == "else" {
		p.expect(kindTagEnd)
		s.otherwise, _ = p.block("endfor")
	}
	p.expect(kindTagEnd)
	return s
}

func (p *parser) setTag(word token) stmt {
	to := p.target(true)
	if p.skip("=") {
		value := p.tuple(true)
		p.expect(kindTagEnd)
		return &setStmt{at(word.at), to, value}
	}
	s := &setBlock{at: at(word.at), target: to}
	if p.is("|") {
		s.filter = p.filters(&blockText{at(word.at)})
	}
	p.expect(kindTagEnd)
	s.body = p.captured("endset")
	p.expect(kindTagEnd)
	return s
}

func (p *parser) macroTag(word token) stmt {
	s := &macroStmt{at: at(word.at), name: p.expect(kindName).text}
	p.expect("(")
	for !p.is(")") {
		if len(s.params) > 0 {
			p.expect(",")
		}
		tok := p.expect(kindName)
		if tok.text == "caller" {
			p.unsupported(tok.at, "caller in a macro")
		}
		par := param{name: tok.text}
		if p.skip("=") {
			par.value = p.expression()
		} else if n := len(s.params); n > 0 && s.params[n-1].value != nil {
			p.fail(tok.at, "parameter %s without a default follows one that has a default", tok.text)
		}
		s.params = append(s.params, par)
	}
	p.expect(")")
	p.expect(kindTagEnd)
	outer := p.inMacro
	p.inMacro = true
	s.body = p.captured("endmacro")
	p.inMacro = outer
	p.expect(kindTagEnd)
	return s
}

// captured reads a block whose text is not written where it stands. No loop
// around it can be left from within.
func (p *parser) captured(end string) []stmt {
	inFor, capturing := p.inFor, p.capturing
	p.inFor, p.capturing = false, true
	body, _ := p.block(end)
	p.inFor, p.capturing = inFor, capturing
	return body
}

func (p *parser) generationTag(word token) stmt {
	p.t.marks = true
	if p.capturing && p.t.misplaced < 0 {
		p.t.misplaced = word.at
	}
	p.expect(kindTagEnd)
	s := &generationStmt{at(word.at), p.captured("endgeneration")}
	p.expect(kindTagEnd)
	return s
}
