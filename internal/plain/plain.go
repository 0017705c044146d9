// Package plain makes text from a cluster, a peer or a lease safe to show. Control characters move a terminal's
// cursor, set its title and hide lines; invisible characters reverse text or hide in it. They are written as \uXXXX,
// which in a JSON string is the same character.
package plain

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Writer writes text to another writer. Several goroutines may use it.
type Writer struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte // the beginning of a character that the next call may complete
}

// NewWriter returns a Writer that writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w} }

// Write writes p without control characters other than newline and tab. Bytes that are not UTF-8 become U+FFFD.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, rest := split(append(w.rest, p...))
	w.rest = bytes.Clone(rest)
	if _, err := w.to.Write(Text(text)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// split cuts off the incomplete character at the end.
func split(text []byte) (whole, rest []byte) {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if end := text[len(text)-n:]; utf8.RuneStart(end[0]) {
			if !utf8.FullRune(end) {
				return text[:len(text)-n], end
			}
			break
		}
	}
	return text, nil
}

// Text returns text as a Writer writes it.
func Text(text []byte) []byte {
	var out bytes.Buffer
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case unicode.IsGraphic(r), r == '\n', r == '\t':
			out.WriteRune(r)
		default:
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&out, `\u%04x`, unit)
			}
		}
		text = text[n:]
	}
	return out.Bytes()
}

// Raw returns the writer behind a Writer, for what is not text, and any other writer as it is.
func Raw(w io.Writer) io.Writer {
	if p, ok := w.(*Writer); ok {
		return p.to
	}
	return w
}
