package firewall

import "github.com/twill-net/twill/netstate/nfnl"

// reader reads our chains in nf_tables.
type reader struct{ nfnl.Reader }

func (f *Firewall) reader() *reader { return &reader{nfnl.Reader{Conn: &f.nf}} }
