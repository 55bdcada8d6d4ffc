package jinja

// stmt is a statement, expr an expression. at is the offset of either in the
// source; it is where their errors lie.
type (
	stmt interface {
		exec(f *frame) (flow, error)
		offset() int
	}
	expr interface {
		eval(f *frame) (Value, error)
		offset() int
	}
	// target is what set and for assign to.
	target interface {
		assign(f *frame, v Value) error
	}
	at int
)

func (a at) offset() int { return int(a) }

// Statements.
type (
	textStmt struct {
		at
		text string
	}
	printStmt struct {
		at
		value expr
	}
	ifStmt struct {
		at
		branches  []branch
		otherwise []stmt
	}
	branch struct {
		test expr
		body []stmt
	}
	forStmt struct {
		at
		target    target
		items     expr
		test      expr // nil: every item
		body      []stmt
		otherwise []stmt // nil without else
	}
	setStmt struct {
		at
		target target
		value  expr
	}
	// setBlock assigns the text of body, put through filter where there is one.
	setBlock struct {
		at
		target target
		filter expr // over a blockText; nil: none
		body   []stmt
	}
	macroStmt struct {
		at
		name   string
		params []param
		body   []stmt
	}
	param struct {
		name  string
		value expr // the default; nil: none
	}
	generationStmt struct {
		at
		body []stmt
	}
	flowStmt struct {
		at
		flow flow
	}
)

// Expressions.
type (
	constant struct {
		at
		value Value
	}
	name struct {
		at
		name string
	}
	listExpr struct {
		at
		items []expr
	}
	tupleExpr struct {
		at
		items []expr
	}
	dictExpr struct {
		at
		keys, values []expr
	}
	attribute struct {
		at
		of   expr
		name string
	}
	subscript struct {
		at
		of, index expr
	}
	slice struct {
		at
		of, start, stop, step expr // nil: left out
	}
	call struct {
		at
		of   expr
		args args
	}
	filterExpr struct {
		at
		of   expr
		name string
		args args
	}
	testExpr struct {
		at
		of   expr
		name string
		args args
	}
	args struct {
		positional []expr
		named      []param
	}
	not struct {
		at
		of expr
	}
	negative struct {
		at
		of   expr
		sign int64 // 1 or -1
	}
	// logic is and, or: it stops at the first value that decides.
	logic struct {
		at
		left, right expr
		or          bool
	}
	binary struct {
		at
		op          kind
		left, right expr
	}
	// joined is the operator ~.
	joined struct {
		at
		parts []expr
	}
	// comparison is a chain such as a < b < c.
	comparison struct {
		at
		left expr
		rest []operand
	}
	operand struct {
		op    string // in and "not in" among them
		value expr
	}
	choice struct {
		at
		test, yes, no expr // no is nil without else
	}
	// blockText stands for the text of a set block within its filter.
	blockText struct{ at }
)

// Targets.
type (
	tupleTarget struct {
		at
		items []target
	}
	namespaceTarget struct {
		at
		namespace, name string
	}
)
