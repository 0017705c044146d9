package host

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/echo"
)

// Stream is an endless ping at a fixed rate, to count what was lost between two moments.
type Stream struct {
	socket *echo.Socket
	to     netip.Addr
	size   int // of a packet
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu       sync.Mutex
	sent     []time.Time // by number of the request
	answered []bool
	failed   error // the first error of sending
}

// Mark is a moment of a Stream: the number of requests sent before it.
type Mark int

// Loss is what a Stream saw between two marks.
type Loss struct {
	Sent, Lost int
	Run        int       // the most that were lost one after the other
	First      time.Time // when the first one of these Run was sent
}

func (l Loss) String() string { return fmt.Sprintf("%d of %d lost", l.Lost, l.Sent) }

// Stream starts to ping an address every interval, until Close.
func (h Host) Stream(to netip.Addr, interval time.Duration) (*Stream, error) {
	return h.StreamOf(0, to, interval)
}

// StreamOf is Stream with IP packets of size bytes; 0: small ones.
func (h Host) StreamOf(size int, to netip.Addr, interval time.Duration) (*Stream, error) {
	socket, err := h.openEcho(to, echo.NoLimit)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Stream{socket: socket, to: to, size: size, stop: stop}
	s.done.Go(func() { s.send(ctx, interval) })
	s.done.Go(s.receive)
	return s, nil
}

func (s *Stream) send(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		s.mu.Lock()
		n := len(s.answered)
		s.sent, s.answered = append(s.sent, time.Now()), append(s.answered, false)
		s.mu.Unlock()
		if err := s.socket.Send(s.to, uint64(n), s.size); err != nil {
			s.fail(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = fmt.Errorf("ping %s: %w", s.to, err)
	}
}

func (s *Stream) receive() {
	for {
		_, n, err := s.socket.Receive()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		if int(n) < len(s.answered) {
			s.answered[n] = true
		}
		s.mu.Unlock()
	}
}

// Mark is this moment.
func (s *Stream) Mark() Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Mark(len(s.answered))
}

// Between counts the requests sent from one mark up to another. It gives the last replies up to a second; the
// error is the first one of sending, if any request was lost.
func (s *Stream) Between(ctx context.Context, from, to Mark) (Loss, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Second)
	for {
		loss, err := s.count(from, to)
		if loss.Lost == 0 {
			return loss, nil
		}
		select {
		case <-ctx.Done():
			return loss, ctx.Err()
		case <-late:
			return loss, err
		case <-tick.C:
		}
	}
}

func (s *Stream) count(from, to Mark) (Loss, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loss := Loss{Sent: int(to - from)}
	run := 0
	for n := from; n < to; n++ {
		if s.answered[n] {
			run = 0
			continue
		}
		loss.Lost++
		if run++; run > loss.Run {
			loss.Run, loss.First = run, s.sent[int(n)-run+1]
		}
	}
	return loss, s.failed
}

// Close ends the ping and releases its socket, which would keep the namespace alive.
func (s *Stream) Close() {
	s.stop()
	_ = s.socket.Close()
	s.done.Wait()
}
