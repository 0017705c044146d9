package netstate

// comparableObject holds at compile time that every Object can be compared with ==: a slice or map in one of
// these structs does not compile.
type comparableObject interface {
	Object
	comparable
}

func mustCompare[T comparableObject]() {}

var _ = [...]func(){
	mustCompare[VXLAN], mustCompare[Bridge], mustCompare[Tun], mustCompare[Tunnel], mustCompare[WireGuard],
	mustCompare[OtherLink], mustCompare[Listener], mustCompare[Peer], mustCompare[Policy], mustCompare[Sysctl],
	mustCompare[Addr], mustCompare[Neigh], mustCompare[FDB], mustCompare[Route], mustCompare[Chain],
	mustCompare[Strays], mustCompare[Port], mustCompare[BridgeFDB], mustCompare[Offload],
	mustCompare[Set], mustCompare[Filter], mustCompare[Element], mustCompare[Hook],
	mustCompare[Shortcut], mustCompare[PodPort], mustCompare[Switch], mustCompare[Program],
}
