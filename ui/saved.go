package ui

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/target"
)

// Saved is a page in a file: what there was to see at one time.
type Saved struct {
	At      time.Time             `json:"at"`
	View    target.View           `json:"view"`
	Update  Update                `json:"update"`
	Survey  *doctor.Survey        `json:"survey,omitempty"`
	History *doctor.HistoryReport `json:"history,omitempty"`
	Trace   *doctor.Trace         `json:"trace,omitempty"`
	Walk    *walk.Path            `json:"walk,omitempty"`
}

// frame is the page in one file. Its policy names its script and its style by their hashes, so nothing else can run in it
// whatever the data holds, and it loads nothing. It is no template of html/template: with that the linker keeps all methods of
// the program.
const frame = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '%[1]s'; style-src '%[2]s'; img-src data:; base-uri 'none'; form-action 'none'">
<title>%[3]s</title>
<style>%[4]s</style>
</head>
<body>
<div id="app"></div>
<script type="application/json" id="saved">%[5]s</script>
<script type="module">%[6]s</script>
</body>
</html>
`

// WriteHTML writes the page with what was saved as one file.
func (s Saved) WriteHTML(w io.Writer) error {
	script, err := dist.ReadFile("dist/page.js")
	if err != nil {
		return err
	}
	style, err := dist.ReadFile("dist/page.css")
	if err != nil {
		return err
	}
	if bytes.Contains(script, []byte("</script")) || bytes.Contains(style, []byte("</style")) {
		return errors.New("the page's script or style would end its own element")
	}
	data, err := json.Marshal(s) // it writes <, > and & as \u003c, \u003e and \u0026: no text ends the element
	if err != nil {
		return err
	}
	title := fmt.Sprintf("Twill: %s %s, %s", s.View.Kind, s.View.Name, s.At.UTC().Format(time.DateTime))
	_, err = fmt.Fprintf(w, frame, hash(script), hash(style), html.EscapeString(title), style, data, script)
	return err
}

func hash(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// saveQuery is what the page shows beside the state of the nodes.
type saveQuery struct {
	Trace *doctor.Trace `json:"trace"`
	Walk  *walk.Path    `json:"walk"`
}

// save answers with the page as one file.
func (s *Server) save(w http.ResponseWriter, r *http.Request) {
	var q saveQuery
	if err := decode(w, r, &q); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	f, err := s.feedOf(r)
	if err != nil {
		fail(w, http.StatusNotFound, err.Error())
		return
	}
	saved, err := Save(r.Context(), f.source)
	if err != nil {
		fail(w, http.StatusBadGateway, err.Error())
		return
	}
	saved.Trace, saved.Walk = q.Trace, q.Walk
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="twill.html"`)
	_ = saved.WriteHTML(w) // the client has gone
}

// Save asks a source for all that a file shows.
func Save(ctx context.Context, s target.Source) (Saved, error) {
	status, err := s.Status(ctx)
	if err != nil {
		return Saved{}, err
	}
	survey, err := s.Doctor(ctx, doctor.PeerProbes)
	if err != nil {
		return Saved{}, err
	}
	saved := Saved{At: time.Now().UTC(), View: viewOf(s), Survey: &survey}
	saved.View.Can = target.Can{Doctor: true}
	places, err := s.Places(ctx)
	if err != nil {
		return Saved{}, err
	}
	if history, err := s.History(ctx, time.Hour); err == nil { // agents of earlier versions have none
		saved.History, saved.View.Can.History = &history, true
	}
	sortNodes(status.Nodes)
	saved.Update = Update{Version: 1, At: saved.At, Nodes: list(status.Nodes), Gone: []string{}, Silent: list(status.Silent),
		Places: &places}
	return saved, nil
}
