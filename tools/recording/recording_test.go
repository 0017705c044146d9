package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	steps, err := parse("# remark\n$ a b\n: x|y\n\n$ c\n")
	if err != nil || len(steps) != 3 || steps[0].command != "a b" || !steps[0].show.MatchString("y") || steps[1].command != "" ||
		steps[2].command != "c" || steps[2].show != nil {
		t.Errorf("%v, %v", steps, err)
	}
	for _, bad := range []string{"", ": a\n", "a\n", "$ a\n: (\n"} {
		if steps, err := parse(bad); err == nil {
			t.Errorf("%q: %v", bad, steps)
		}
	}
}

// program makes a twillctl that prints what it was told, and some lines.
func program(t *testing.T, exit int) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "twillctl")
	script := fmt.Sprintf("#!/bin/sh\necho first\necho second\necho third: \"$*\"\nexit %d\n", exit)
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRecord(t *testing.T) {
	steps, err := parse("$ sudo twillctl lab ping\n: first|third\n\n$ sudo twillctl doctor --lab twill\n")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := record(t.Context(), program(t, 1), steps, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var last time.Duration
	for _, l := range lines {
		got = append(got, l.text)
		if l.at < last {
			t.Errorf("%q appears before the line above", l.text)
		}
		last = l.at
	}
	want := "$ sudo twillctl lab ping, first, ⋮, third: lab --name recording ping, , $ sudo twillctl doctor --lab twill"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	if _, err := record(t.Context(), program(t, 2), steps, 0); err == nil {
		t.Error("a command that failed was recorded")
	}
	steps, _ = parse("$ sudo twillctl lab ping\n: nothing\n")
	if _, err := record(t.Context(), program(t, 0), steps, 0); err == nil || !strings.Contains(err.Error(), "that matches nothing") {
		t.Errorf("an output without the wanted lines: %v", err)
	}
}

func TestDraw(t *testing.T) {
	var b bytes.Buffer
	draw(&b, []line{{text: "$ a <b> & c     # why"}, {text: "✗ lost", at: time.Second}, {text: "    fix      x"}})
	for d := xml.NewDecoder(bytes.NewReader(b.Bytes())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
	}
	for _, want := range []string{`class="c">$ a &lt;b&gt; &amp; c<`, `class="r"># why<`, `animation-delay:1.00s`, `class="b">✗<`, `class="b">lost<`,
		`x="119.8" y="86" class="g">x<`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}

// TestPicture: the picture in the documents shows the commands of the session.
func TestPicture(t *testing.T) {
	session, err := os.ReadFile("doctor.txt")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := parse(string(session))
	if err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile("../../Documentation/recording.svg")
	if err != nil {
		t.Fatal(err)
	}
	shown := string(picture)
	for _, s := range steps {
		command, _, _ := strings.Cut(s.command, "     # ")
		_, after, ok := strings.Cut(shown, ">$ "+command+"<")
		if s.command != "" && !ok {
			t.Errorf("the picture does not show %q next: make recording", command)
			continue
		}
		if ok {
			shown = after
		}
	}
}
