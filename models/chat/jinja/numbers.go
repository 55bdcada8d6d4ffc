package jinja

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// number is v as a number: int64 (booleans too) or float64.
func number(v Value) (Value, bool) {
	switch v := v.(type) {
	case bool:
		return boolInt(v), true
	case int64, float64:
		return v, true
	}
	return nil, false
}

func integer(v Value) (int64, bool) {
	n, _ := number(v)
	i, ok := n.(int64)
	return i, ok
}

func float(v Value) float64 {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	}
	return math.NaN()
}

var errOverflow = fmt.Errorf("%w: integers of more than 64 bits", ErrUnsupported)

// arithmetic computes with numbers as Python does: / gives a float, // and %
// round down.
func arithmetic(op kind, left, right Value) (Value, error) {
	x, xInt := left.(int64)
	y, yInt := right.(int64)
	if (op == "/" || op == "//" || op == "%") && float(right) == 0 {
		return nil, errors.New("division by zero")
	}
	if !xInt || !yInt || op == "/" {
		return floatArithmetic(op, float(left), float(right))
	}
	switch op {
	case "+":
		z := x + y
		if (z > x) != (y > 0) {
			return nil, errOverflow
		}
		return z, nil
	case "-":
		z := x - y
		if (z < x) != (y > 0) {
			return nil, errOverflow
		}
		return z, nil
	case "*":
		return multiply(x, y)
	case "//":
		if y == -1 {
			return multiply(x, y)
		}
		z := x / y
		if x%y != 0 && (x < 0) != (y < 0) {
			z--
		}
		return z, nil
	case "%":
		if y == -1 {
			return int64(0), nil
		}
		z := x % y
		if z != 0 && (z < 0) != (y < 0) {
			z += y
		}
		return z, nil
	}
	return power(x, y)
}

func multiply(x, y int64) (Value, error) {
	z := x * y
	if x != 0 && (z/x != y || x == -1 && y == math.MinInt64) {
		return nil, errOverflow
	}
	return z, nil
}

func power(x, y int64) (Value, error) {
	if y < 0 {
		return floatArithmetic("**", float64(x), float64(y))
	}
	if x == 0 || x == 1 || x == -1 { // y may be huge
		if y == 0 || x == -1 && y%2 == 0 {
			return int64(1), nil
		}
		return x, nil
	}
	z := int64(1)
	for range y {
		v, err := multiply(z, x)
		if err != nil {
			return nil, err
		}
		z = v.(int64)
	}
	return z, nil
}

func floatArithmetic(op kind, x, y float64) (Value, error) {
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "/":
		return x / y, nil
	case "//":
		return math.Floor(x / y), nil
	case "%":
		z := math.Mod(x, y)
		if z != 0 && (z < 0) != (y < 0) {
			z += y
		}
		return z, nil
	}
	z := math.Pow(x, y)
	if math.IsNaN(z) || math.IsInf(z, 0) {
		return nil, fmt.Errorf("%w: ** with this result", ErrUnsupported)
	}
	return z, nil
}

func intFilter(_ *frame, v Value, a arguments) (Value, error) {
	if u, ok := v.(undefined); ok {
		return nil, u.fails()
	}
	given, err := a.bind(0, "default", "base")
	if err != nil {
		return nil, err
	}
	if given[1] != missing {
		return nil, fmt.Errorf("%w: base", ErrUnsupported)
	}
	otherwise := given[0]
	if otherwise == missing {
		otherwise = int64(0)
	}
	if s, ok := v.(string); ok {
		s = strings.TrimFunc(s, isSpace)
		i, err := strconv.ParseInt(underscored(s), 10, 64)
		if err == nil {
			return i, nil
		}
		if errors.Is(err, strconv.ErrRange) {
			return nil, errOverflow
		}
	}
	x, ok := asFloat(v)
	if !ok || math.IsNaN(x) || math.IsInf(x, 0) {
		if i, ok := integer(v); ok {
			return i, nil
		}
		return otherwise, nil
	}
	if i, ok := integer(v); ok {
		return i, nil
	}
	if math.Abs(x) >= 1<<63 {
		return nil, errOverflow
	}
	return int64(x), nil
}

func floatFilter(_ *frame, v Value, a arguments) (Value, error) {
	if u, ok := v.(undefined); ok {
		return nil, u.fails()
	}
	given, err := a.bind(0, "default")
	if err != nil {
		return nil, err
	}
	if x, ok := asFloat(v); ok {
		return x, nil
	}
	if given[0] == missing {
		return 0.0, nil
	}
	return given[0], nil
}

// asFloat is a number, or a text that writes one, as a float.
func asFloat(v Value) (float64, bool) {
	if x, ok := number(v); ok {
		return float(x), true
	}
	s, ok := v.(string)
	s = underscored(strings.TrimFunc(s, isSpace))
	if !ok || strings.ContainsAny(s, "xXpP_") {
		return 0, false
	}
	x, err := strconv.ParseFloat(s, 64)
	return x, err == nil || errors.Is(err, strconv.ErrRange)
}

// underscored drops the single underscores that Python takes between digits.
func underscored(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if s[i] == '_' && i > 0 && i+1 < len(s) && isDigit(s[i-1]) && isDigit(s[i+1]) {
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func absFilter(_ *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	switch x, _ := number(v); x := x.(type) {
	case int64:
		if x < 0 {
			return multiply(x, -1)
		}
		return x, nil
	case float64:
		return math.Abs(x), nil
	}
	return nil, needsOperand("abs", v)
}
