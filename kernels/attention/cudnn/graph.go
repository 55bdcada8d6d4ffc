package cudnn

import (
	"fmt"
	"strings"
)

// graph is a computation as cuDNN sees it: tensors, and operations on them in
// order. cuDNN recognises attention by the pattern of operations and by the types
// of the tensors between them, so a graph is written exactly as it wants it.
type graph struct {
	name    string
	tensors []tensorDesc // a tensor's id is its place in this list, counted from 1
	ops     []op
}

// role says where a tensor lives.
type role string

const (
	real    role = "real"     // in device memory
	scalar  role = "by value" // one number in host memory
	virtual role = "virtual"  // nowhere: the kernel keeps it in registers or in its workspace
)

// tensorDesc is a tensor of a graph.
type tensorDesc struct {
	name    string
	dtype   dataType
	dims    [4]int64
	strides [4]int64 // in elements
	role    role
}

// op is one operation; tensors are named, "" where there is none.
type op struct {
	code opcode
	x, b string   // inputs; of a matmul its factors
	t    string   // of a selection: y = t ? x : b
	y    string   // output
	prec dataType // what a pointwise operation computes in
}

// opcode is an operation without its operands.
type opcode struct {
	name   string
	class  class
	number int64 // of its mode: cudnnPointwiseMode_t or cudnnReduceTensorOp_t
	axis   int64 // of an index, else 0
}

// class is the descriptors by which an operation is described.
type class int

const (
	classMatmul class = iota
	classPointwise
	classReduction
	classReshape
)

var (
	matmul  = opcode{name: "MATMUL", class: classMatmul}
	reshape = opcode{name: "RESHAPE", class: classReshape}

	add       = opcode{name: "ADD", class: classPointwise, number: 0}
	mul       = opcode{name: "MUL", class: classPointwise, number: 1}
	div       = opcode{name: "DIV", class: classPointwise, number: 6}
	sub       = opcode{name: "SUB", class: classPointwise, number: 9}
	exp       = opcode{name: "EXP", class: classPointwise, number: 13}
	log       = opcode{name: "LOG", class: classPointwise, number: 15}
	atLeast   = opcode{name: "CMP_GE", class: classPointwise, number: 303}
	rowIndex  = opcode{name: "GEN_INDEX", class: classPointwise, number: 501, axis: 2}
	colIndex  = opcode{name: "GEN_INDEX", class: classPointwise, number: 501, axis: 3}
	selection = opcode{name: "BINARY_SELECT", class: classPointwise, number: 601}

	// Reductions go along the axes that the output has shorter than the input.
	sum     = opcode{name: "ADD", class: classReduction, number: 0}
	maximum = opcode{name: "MAX", class: classReduction, number: 3}
)

// dense is the strides of a tensor without gaps.
func dense(d [4]int64) [4]int64 {
	return [4]int64{d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}
}

// String is the graph as text, one line a tensor and one an operation. It stands in
// the cache's key, so what can change the computation must be in it.
func (g *graph) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", g.name)
	for i, t := range g.tensors {
		fmt.Fprintf(&b, "tensor %2d %-9s %-8s %v / %v %s\n", i+1, t.name, t.dtype.name, t.dims, t.strides, t.role)
	}
	for i, o := range g.ops {
		fmt.Fprintf(&b, "op %2d %s\n", i+1, o)
	}
	return b.String()
}

func (o op) String() string {
	code := o.code.name
	switch {
	case o.code.class == classReduction:
		code = "reduce " + code
	case o.code.axis != 0:
		code = fmt.Sprintf("%s axis %d", code, o.code.axis)
	}
	text := fmt.Sprintf("%-17s x %-9s", code, o.x)
	for _, in := range []struct{ label, name string }{{"b", o.b}, {"t", o.t}} {
		if in.name != "" {
			text += fmt.Sprintf(" %s %-9s", in.label, in.name)
		}
	}
	text += " y " + o.y
	if o.code.class == classPointwise {
		text += " in " + o.prec.name
	}
	return text
}
