package netstatetest

func cascades() []testCase   { return nil }
func applies() []testCase    { return nil }
func ownerships() []testCase { return nil }
func watches() []testCase    { return nil }
