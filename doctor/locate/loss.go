package locate

// Loss is where and by what packets of a flow are lost.
type Loss struct {
	Flow    Flow
	Back    bool   // it is the answer that is lost
	Host    string // where
	Dev     string // where the packet was seen last there; empty: nowhere
	Last    string // the place where it was seen last, for people
	Missing string // the place where it should have been seen next
	Reason  string // of the kernel, for people; empty: it gave none
	Drop    string // the same, a name of enum skb_drop_reason
	By      Object // what loses it; without a Text it is not known
	Exact   bool   // By is what the kernel said, or the only thing there that can
	Stopped bool   // By is a rule whose verdict it was
	Likely  bool   // what was seen of the packet speaks for By, and not only where it ended
	Others  []Object
	// Unmasked says that the packet left the sender's node with the sender's own address, to which nobody outside can reply.
	Unmasked bool
	// Unanswered says that it left as it should, for hosts that nobody watches, and that nothing came back.
	Unanswered bool
}
