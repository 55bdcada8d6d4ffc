package jinja

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

func (n *negative) eval(f *frame) (Value, error) {
	v, err := f.value(n.of)
	if err != nil {
		return nil, err
	}
	x, ok := number(v)
	if !ok {
		return nil, needsOperand("a sign", v)
	}
	if x, ok := x.(float64); ok {
		return x * float64(n.sign), nil
	}
	return multiply(x.(int64), n.sign)
}

// needsOperand is the error of an operator that does not take v.
func needsOperand(op string, vs ...Value) error {
	kinds := make([]string, len(vs))
	for i, v := range vs {
		if u, ok := v.(undefined); ok {
			return u.fails()
		}
		kinds[i] = typeName(v)
	}
	return fmt.Errorf("%s can't be applied to %s", op, strings.Join(kinds, " and "))
}

func (b *binary) eval(f *frame) (Value, error) {
	left, err := f.value(b.left)
	if err != nil {
		return nil, err
	}
	right, err := f.value(b.right)
	if err != nil {
		return nil, err
	}
	x, isNumber := number(left)
	y, alsoNumber := number(right)
	if isNumber && alsoNumber {
		return arithmetic(b.op, x, y)
	}
	switch b.op {
	case "+":
		return f.concatenate(left, right)
	case "*":
		if isNumber {
			left, right = right, left
		}
		if n, ok := integer(right); ok {
			return f.repeat(left, n)
		}
	case "%":
		if _, ok := left.(string); ok {
			return nil, fmt.Errorf("%w: %% as the formatting of a text", ErrUnsupported)
		}
	}
	return nil, needsOperand(string(b.op), left, right)
}

func (f *frame) concatenate(left, right Value) (Value, error) {
	if joined, ok, err := f.concatenateMarked(left, right); ok {
		return joined, err
	}
	switch x := left.(type) {
	case string:
		if y, ok := right.(string); ok {
			if err := f.bytes(len(x) + len(y)); err != nil {
				return nil, err
			}
			return x + y, nil
		}
	case List:
		if y, ok := right.(List); ok {
			return append(append(List{}, x...), y...), f.step(len(x) + len(y))
		}
	case Tuple:
		if y, ok := right.(Tuple); ok {
			return append(append(Tuple{}, x...), y...), f.step(len(x) + len(y))
		}
	}
	return nil, needsOperand("+", left, right)
}

var escapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

// concatenateMarked joins texts of which one is marked safe; the other is escaped.
func (f *frame) concatenateMarked(left, right Value) (Value, bool, error) {
	_, leftMarked := left.(marked)
	_, rightMarked := right.(marked)
	x, isText := plainText(left).(string)
	y, alsoText := plainText(right).(string)
	if !leftMarked && !rightMarked || !isText || !alsoText {
		return nil, false, nil
	}
	if !leftMarked {
		x = escapes.Replace(x)
	}
	if !rightMarked {
		y = escapes.Replace(y)
	}
	return marked(x + y), true, f.bytes(len(x) + len(y))
}

func (f *frame) repeat(v Value, n int64) (Value, error) {
	n = max(n, 0)
	s, isText := v.(string)
	items, isSequence := sequence(v)
	if _, ok := v.(*view); ok || !isText && !isSequence {
		return nil, needsOperand("*", v, n)
	}
	over, size := bits.Mul64(uint64(n), uint64(len(s)+len(items)))
	if over != 0 || size > math.MaxInt32 {
		size = math.MaxInt32 + 1 // past every limit
	}
	if isText {
		if err := f.bytes(int(size)); err != nil {
			return nil, err
		}
		return strings.Repeat(s, int(n)), nil
	}
	if err := f.step(int(size)); err != nil {
		return nil, err
	}
	made := make([]Value, 0, size)
	for len(made) < int(size) {
		made = append(made, items...)
	}
	if _, ok := v.(Tuple); ok {
		return Tuple(made), nil
	}
	return List(made), nil
}
