package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
)

// iperfPort is iperf3's own; each namespace has its ports for itself.
const iperfPort = 5201

// startIperf starts a server of iperf3 on a host of a lab, and returns when it listens. It ends with the lab.
func startIperf(ctx context.Context, l *lab.Lab, h host.Host) error {
	path, err := exec.LookPath("iperf3")
	if err != nil {
		return fmt.Errorf("%w: install Debian's package iperf3, or run .ci/setup", err)
	}
	log := filepath.Join(l.Dir(), "logs", "iperf3-"+h.Name+".log")
	p, err := h.Start(host.Command{Path: path, Args: []string{"-s", "--forceflush", "-p", strconv.Itoa(iperfPort)},
		Env: []string{"PATH=" + os.Getenv("PATH"), "TWILL_LAB=" + l.Dir()}, Log: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		text, err := os.ReadFile(log)
		if err == nil && strings.Contains(string(text), "listening") {
			return nil
		}
		if !p.Running() {
			return fmt.Errorf("iperf3 on %s has ended: %s", h.Name, text)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("iperf3 on %s does not listen: %w", h.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stream sends one TCP stream for so many seconds, and returns its rate and what a GB of it costs all processors.
func stream(ctx context.Context, from, to end, seconds int) (gbits, cpu float64, err error) {
	before, err := readClock()
	if err != nil {
		return 0, 0, err
	}
	out, runErr := from.Exec(ctx, "iperf3", "-c", to.addr.String(), "-p", strconv.Itoa(iperfPort), "-t", strconv.Itoa(seconds), "--json")
	after, err := readClock()
	if err != nil {
		return 0, 0, err
	}
	bytes, gbits, err := parseIperf(out)
	if err = errors.Join(err, runErr); err != nil {
		return 0, 0, fmt.Errorf("send from %s to %s: %w", from.Name, to.addr, err)
	}
	return gbits, after.since(before).busy.Seconds() / (bytes / 1e9), nil
}

// parseIperf reads what the receiver got from the client's report.
func parseIperf(report string) (bytes, gbits float64, err error) {
	var r struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bytes float64 `json:"bytes"`
				Rate  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(report), &r); err != nil {
		return 0, 0, fmt.Errorf("read iperf3's report: %w", err)
	}
	if r.Error != "" {
		return 0, 0, fmt.Errorf("iperf3: %s", r.Error)
	}
	if r.End.Received.Bytes == 0 {
		return 0, 0, errors.New("iperf3: nothing was received")
	}
	return r.End.Received.Bytes, r.End.Received.Rate / 1e9, nil
}
