package cudnn

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the graphs of testdata anew")

// shapes are those whose graphs stand in testdata: grouped heads, as many heads of
// keys as of queries, and a slice of one head of keys and its queries, whose rows
// are longer than its heads.
var shapes = map[string]shape{
	"grouped": whole(2, 77, 14, 2, 64),
	"equal":   whole(3, 128, 12, 12, 64),
	"slice":   {B: 1, T: 1000, H: 7, K: 1, D: 128, E: 36 * 128, R: 28 * 128},
}

// What reaches the library is what stands in testdata, where it can be read beside
// the tables that were proved on a GPU.
func TestTheLibraryIsGivenTheGraphs(t *testing.T) {
	for name, sh := range shapes {
		for _, g := range []*graph{forward(sh), backward(sh)} {
			file := filepath.Join("testdata", strings.Trim(strings.Fields(g.name)[1], ",")+"-"+name+".txt")
			t.Run(filepath.Base(file), func(t *testing.T) {
				f := openFake(t)
				b := &builder{s: f.session(t)}
				if _, err := b.graph(g); err != nil {
					t.Fatal(err)
				}
				if got := given(t, g, f.record()); got != g.String() {
					t.Errorf("the library was given\n%s\nthe graph is\n%s", got, g)
				}
				if *rewrite {
					if err := os.WriteFile(file, []byte(g.String()), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if g.String() != string(want) {
					t.Errorf("%s says\n%s\nthe graph is\n%s", file, want, g)
				}
			})
		}
	}
}

// given turns the fake's record of a graph into the text that graph.String writes,
// from numbers alone; only the names are the graph's.
func given(t *testing.T, g *graph, record string) string {
	t.Helper()
	types := map[int64]string{0: "FLOAT", 4: "INT32", 9: "BFLOAT16", 11: "BOOLEAN"}
	pointwise := map[int64]string{0: "ADD", 1: "MUL", 6: "DIV", 9: "SUB", 13: "EXP", 15: "LOG", 303: "CMP_GE", 501: "GEN_INDEX", 601: "BINARY_SELECT"}
	reductions := map[int64]string{0: "ADD", 3: "MAX"}
	name := func(id int64) string {
		if id == 0 {
			return ""
		}
		return g.tensors[id-1].name
	}
	tensors, ops := map[int64]string{}, ""
	n := 0
	for line := range strings.Lines(record) {
		var word string
		if _, err := fmt.Sscan(line, &word); err != nil {
			t.Fatal(err)
		}
		switch word {
		case "graph", "end":
		case "tensor":
			var id, dtype, virtual, byValue, align int64
			var d, s [4]int64
			if _, err := fmt.Sscanf(line, "tensor %d %d [%d %d %d %d] [%d %d %d %d] %d %d %d", &id, &dtype,
				&d[0], &d[1], &d[2], &d[3], &s[0], &s[1], &s[2], &s[3], &virtual, &byValue, &align); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if align != 16 {
				t.Errorf("tensor %s is aligned to %d", name(id), align)
			}
			where := map[[2]int64]string{{0, 0}: "real", {1, 0}: "virtual", {0, 1}: "by value"}[[2]int64{virtual, byValue}]
			tensors[id] = fmt.Sprintf("tensor %2d %-9s %-8s %v / %v %s\n", id, name(id), types[dtype], d, s, where)
		default:
			var mode, axis, x, b, tt, y, prec int64
			if _, err := fmt.Sscan(strings.TrimPrefix(line, word), &mode, &axis, &x, &b, &tt, &y, &prec); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			code, in := strings.ToUpper(word), ""
			switch {
			case word == "pointwise":
				code, in = pointwise[mode], " in "+types[prec]
				if axis != 0 {
					code += fmt.Sprintf(" axis %d", axis)
				}
			case word == "reduction":
				code = "reduce " + reductions[mode]
			}
			if word != "pointwise" && prec != 0 {
				t.Errorf("%s sums in %s", code, types[prec])
			}
			n++
			ops += fmt.Sprintf("op %2d %-17s x %-9s", n, code, name(x))
			if b != 0 {
				ops += fmt.Sprintf(" b %-9s", name(b))
			}
			if tt != 0 {
				ops += fmt.Sprintf(" t %-9s", name(tt))
			}
			ops += " y " + name(y) + in + "\n"
		}
	}
	text := g.name + "\n"
	for id := int64(1); id <= int64(len(tensors)); id++ {
		text += tensors[id]
	}
	return text + ops
}

// Every tensor but the inputs is written by one operation before it is read, and
// every tensor is used.
func TestGraphsAreWhole(t *testing.T) {
	for name, sh := range shapes {
		for _, g := range []*graph{forward(sh), backward(sh)} {
			written, read := map[string]bool{}, map[string]bool{}
			outputs := map[string]bool{"o": true, "stats": true}
			if strings.Contains(g.name, "backward") {
				outputs = map[string]bool{"dq": true, "dk": true, "dv": true, "delta": true}
			}
			byName := map[string]tensorDesc{}
			for _, x := range g.tensors {
				byName[x.name] = x
				if x.role == scalar || x.role == real && !outputs[x.name] {
					written[x.name] = true
				}
			}
			for i, o := range g.ops {
				for _, in := range []string{o.x, o.b, o.t} {
					if in != "" && !written[in] {
						t.Errorf("%s, %s: operation %d reads %q, which is not written yet", name, g.name, i+1, in)
					}
					read[in] = true
				}
				if written[o.y] {
					t.Errorf("%s, %s: operation %d writes %q, which is written already", name, g.name, i+1, o.y)
				}
				written[o.y] = true
				if o.code == matmul {
					a, b, y := byName[o.x].dims, byName[o.b].dims, byName[o.y].dims
					if a[3] != b[2] || y[2] != a[2] || y[3] != b[3] {
						t.Errorf("%s, %s: operation %d multiplies %v by %v into %v", name, g.name, i+1, a, b, y)
					}
				}
			}
			for _, x := range g.tensors {
				if !written[x.name] || !read[x.name] && !outputs[x.name] {
					t.Errorf("%s, %s: %q is not used", name, g.name, x.name)
				}
			}
			if len(byName) != len(g.tensors) {
				t.Errorf("%s, %s: two tensors of one name", name, g.name)
			}
		}
	}
}
