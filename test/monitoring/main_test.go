package monitoring

import (
	"os"
	"testing"

	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
