package param

import (
	"fmt"
	"slices"
	"strings"
)

// Expected lists the trainable parameters in the order in which their gradients are
// expected: names, or the reverse of the list. It fails where two parameters have one
// name, none is trainable, or names is not a permutation of the trainable ones.
// Errors begin with asker, the package whose Order names are.
func Expected(asker string, params []*Param, names []string) ([]*Param, error) {
	byName := make(map[string]*Param, len(params))
	var order []*Param
	for _, p := range slices.Backward(params) {
		if byName[p.Name] != nil {
			return nil, fmt.Errorf("%s: two parameters are called %s", asker, p.Name)
		}
		byName[p.Name] = p
		if !p.Frozen {
			order = append(order, p)
		}
	}
	if len(order) == 0 {
		return nil, fmt.Errorf("%s: no parameter is trainable: there is nothing to reduce", asker)
	}
	if len(names) == 0 {
		return order, nil
	}
	given := make([]*Param, 0, len(order))
	for _, name := range names {
		p := byName[name]
		switch {
		case p == nil:
			return nil, fmt.Errorf("%s: Order names %s, which the model does not have, or names it twice", asker, name)
		case p.Frozen:
			return nil, fmt.Errorf("%s: Order names %s, which is frozen", asker, name)
		}
		delete(byName, name)
		given = append(given, p)
	}
	for _, p := range order {
		if byName[p.Name] != nil {
			return nil, fmt.Errorf("%s: Order lacks %s: it must name every trainable parameter once", asker, p.Name)
		}
	}
	return given, nil
}

// Names lists the parameters' names for an error, at most twenty of them.
func Names(params []*Param) string {
	const most = 20
	var list []string
	for _, p := range params[:min(most, len(params))] {
		list = append(list, p.Name)
	}
	text := strings.Join(list, ", ")
	if more := len(params) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
