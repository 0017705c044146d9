// Package attributes lists what the kernel reports about objects of ours, attribute by attribute, and what becomes of
// each when somebody else alters it. Numbers and names are those of the kernel's headers, up to Linux 6.18.
package attributes

import "slices"

// Fate is what becomes of an attribute that somebody else alters.
type Fate uint8

// The fates.
const (
	Pinned  Fate = iota + 1 // it is put back
	Derived                 // nobody sets it by itself: it counts, or follows from other attributes
	Free                    // it stays: it is anybody's to set
)

func (f Fate) String() string { return [...]string{"unknown", "kept", "derived", "free"}[f] }

// Form is how the bytes of a value are read.
type Form uint8

// The forms.
const (
	Number  Form = iota // in the machine's byte order; an attribute without bytes is 1
	Network             // a number in network byte order, printed in hexadecimal
	Address             // an IP address
	Device              // the index of a device, printed by its name
	Options             // four bytes of options, and four that say which of them are there
)

// Place is what a table's rows are.
type Place uint8

// The places.
const (
	Attributes Place = iota // attributes of netlink; IDs are their types
	Bits                    // the bits of a field; IDs are their numbers
	Header                  // the fields of the struct that a message begins with; IDs are the bytes where they begin
)

// Attribute is one attribute of a kind of object.
type Attribute struct {
	ID   uint16 // see Place
	Name string // the kernel's, without the table's prefix
	Word string // iproute2's, which is also what an object's Extra says; empty: iproute2 has none
	Fate Fate
	// Field is where a netstate object has it. A pinned attribute without a field has Value, and everything else goes
	// into the object's Extra.
	Field string
	Value uint64 // zero also stands for an attribute that is not reported
	Most  bool   // Value is the most that it may be
	Form  Form
	Note  string // why it is free, or what it is derived from
}

// Table is the attributes that stand in one place of a message about one kind of object.
type Table struct {
	Object string // as a Plan calls it: "link"
	Of     string // the type of device that the table is about; empty: any
	Where  string // in the message, in words
	Prefix string // of the names
	Place  Place
	Path   []uint16 // the attributes that these are nested in
	Rows   []Attribute
}

// All returns every table.
func All() []Table {
	return slices.Concat(linkTables, addrTables, entryTables, routeTables, Firewall(), portTables, Parameters)
}

// Of returns the tables about a kind of object, as a Plan calls it; of a link, those of one type of device. Where two
// have a row for one attribute the first counts.
func Of(object, kind string) []Table {
	return slices.DeleteFunc(All(), func(t Table) bool { return t.Object != object || t.Of != "" && t.Of != kind })
}

// Find returns the row of an attribute in the first of the tables that has one in that place.
func Find(tables []Table, place Place, path []uint16, id uint16) (Attribute, bool) {
	for i := range tables {
		if t := &tables[i]; t.Place == place && slices.Equal(t.Path, path) {
			for j := range t.Rows {
				if t.Rows[j].ID == id {
					return t.Rows[j], true
				}
			}
		}
	}
	return Attribute{}, false
}

// Nests reports whether a table has attributes that are nested in the last of path.
func Nests(tables []Table, path []uint16) bool {
	return slices.ContainsFunc(tables, func(t Table) bool {
		return len(t.Path) >= len(path) && slices.Equal(t.Path[:len(path)], path)
	})
}

// field is a pinned attribute that a netstate object has a field for.
func field(id uint16, name, word, field string) Attribute {
	return Attribute{ID: id, Name: name, Word: word, Fate: Pinned, Field: field}
}

// pinned is a pinned attribute that is always the same.
func pinned(id uint16, name, word string, value uint64) Attribute {
	return Attribute{ID: id, Name: name, Word: word, Fate: Pinned, Value: value}
}

// most is a pinned attribute that may be less than a value.
func most(id uint16, name, word string, value uint64, why string) Attribute {
	return Attribute{ID: id, Name: name, Word: word, Fate: Pinned, Value: value, Most: true, Note: why}
}

// in reads a pinned attribute in another form than as a number.
func (a Attribute) in(f Form) Attribute {
	a.Form = f
	return a
}

func derived(id uint16, name, from string) Attribute {
	return Attribute{ID: id, Name: name, Fate: Derived, Note: from}
}

func free(id uint16, name, word, why string) Attribute {
	return Attribute{ID: id, Name: name, Word: word, Fate: Free, Note: why}
}
