package doctor

// Join makes one trip of what two nodes each saw of it with TraceHere: near is the sender's, far the receiver's.
func Join(near, far Trip) Trip {
	t := Trip{Schema: Schema, Src: near.Src, Dst: near.Dst, Live: joinLive(near.Live, far.Live)}
	var stopped bool
	for _, part := range []struct {
		to    *[]Step
		steps []Step
	}{{&t.There, near.There}, {&t.There, far.There}, {&t.Back, far.Back}, {&t.Back, near.Back}} {
		*part.to = append(*part.to, part.steps...)
		if t.Stopped, stopped = last(part.steps); stopped {
			return t
		}
	}
	return t
}

// joinLive puts what two nodes saw in the order of the way. They did not begin at the same moment, so their numbers differ.
func joinLive(near, far *Live) *Live {
	if near == nil || far == nil {
		return near
	}
	l := Live{Seconds: max(near.Seconds, far.Seconds), There: append(near.There, far.There...), Back: append(far.Back, near.Back...),
		Drops: append(near.Drops, far.Drops...), NoReasons: or(near.NoReasons, far.NoReasons)}
	switch {
	case len(near.There) > 0 && len(far.There) == 0:
		l.Gone = "none came to the other node; seen last on " + near.There[len(near.There)-1].String()
	case len(far.Back) > 0 && len(near.Back) == 0:
		l.Gone = "no reply came to the sender's node; seen last on " + far.Back[len(far.Back)-1].String()
	case len(far.There) > 0 && len(l.Back) == 0:
		l.Gone = "no reply was seen; seen last on " + far.There[len(far.There)-1].String()
	}
	return &l
}
