package config

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
)

// Schema is the JSON Schema (draft 2020-12) of train.yaml, by which editors
// complete and check keys. It holds what can be said key by key; what depends on
// several keys only Load knows.
func Schema() []byte {
	s := sectionSchema(root)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "train.yaml of gorun"
	s["$defs"] = object{"variable": object{"type": "string", "pattern": `\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}`}}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		panic("config: " + err.Error()) // maps of strings and numbers always encode
	}
	return b.Bytes()
}

type object = map[string]any

func sectionSchema(s *field) object {
	properties := object{}
	for _, f := range s.children {
		if f.isSection() {
			properties[f.key] = sectionSchema(f)
		} else {
			properties[f.key] = f.schema()
		}
	}
	o := object{"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false}
	if s == root {
		o["type"] = "object"
	}
	if s.doc != "" {
		o["description"] = s.doc
	}
	return o
}

func (f *field) schema() object {
	one := f.scalarSchema()
	if f.scalar().Kind() != reflect.String || f.enum != nil {
		one = object{"anyOf": []object{one, {"$ref": "#/$defs/variable"}}}
	}
	o := one
	if f.isList() {
		list := object{"type": "array", "items": one}
		if f.length > 0 {
			list["minItems"], list["maxItems"] = f.length, f.length
			o = list
		} else {
			o = object{"anyOf": []object{one, list}}
		}
	}
	o["description"] = f.meaning()
	if f.unit != "" {
		o["description"] = f.meaning() + " Unit: " + f.unit + "."
	}
	if f.def != "" && f.derived == "" {
		v := reflect.New(f.typ).Elem()
		c := new(Config)
		setDefaults(c)
		v.Set(f.in(c))
		o["default"] = v.Interface()
		if f.typ == durationType {
			o["default"] = f.def
		}
	}
	return o
}

func (f *field) scalarSchema() object {
	o := object{}
	switch t := f.scalar(); {
	case f.enum != nil:
		o["enum"] = f.enum
	case t == durationType:
		o["type"], o["pattern"] = "string", `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`
		return o
	case t == bytesType:
		var units []string
		for _, u := range byteUnits {
			units = append(units, u.suffix)
		}
		return object{"anyOf": []object{
			{"type": "integer", "minimum": 0},
			{"type": "string", "pattern": `^[0-9.]+ ?(` + strings.Join(units, "|") + `)$`},
		}}
	case t.Kind() == reflect.Bool:
		o["type"] = "boolean"
	case t.Kind() == reflect.Float64:
		o["type"] = "number"
	case t.Kind() == reflect.String:
		// A plain word that looks like a number is text to Load, too.
		o["type"] = []string{"string", "number"}
	default:
		o["type"] = "integer"
		if t.Kind() == reflect.Uint64 {
			o["minimum"] = 0
		}
	}
	if i := f.bounds; i != nil {
		low, high := "minimum", "maximum"
		if i.openLow {
			low = "exclusiveMinimum"
		}
		if i.openHigh {
			high = "exclusiveMaximum"
		}
		if !math.IsInf(i.lo, 0) {
			o[low] = i.lo
		}
		if !math.IsInf(i.hi, 0) {
			o[high] = i.hi
		}
	}
	return o
}
