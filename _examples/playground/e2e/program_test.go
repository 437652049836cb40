package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestProgram runs the playground as a program with the Redis inside it. A scene must open
// in this Redis, and an interrupt must end the program while a page is open. Outside
// the repository, the program must say that it needs it, and end.
func TestProgram(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "playground")
	build := exec.Command("go", "build", "-o", program, "./playground")
	build.Dir = "../.." // the module of the examples
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	lost := exec.Command(program, "-addr", "127.0.0.1:0")
	lost.Dir = filepath.Dir(program)
	if out, err := lost.CombinedOutput(); err == nil || !strings.Contains(string(out), "start the playground in a clone of the repository") || strings.Contains(string(out), "http://") {
		t.Errorf("outside the repository: %v, and the program printed\n%s", err, out)
	}
	cmd := exec.Command(program, "-addr", "127.0.0.1:0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	line, _ := bufio.NewReader(out).ReadString('\n')
	go func() { ended <- cmd.Wait() }()
	base := regexp.MustCompile(`http://\S+`).FindString(line)
	if base == "" {
		t.Fatalf("the program printed %q", line)
	}
	if event, data, _ := stream(t, base, "store=redis"); event != "scene" || !strings.Contains(data, `"redis":true,"hybrid":false`) || strings.Contains(data, `"paused":true`) {
		t.Errorf("got %s %s", event, data)
	}
	cmd.Process.Signal(os.Interrupt)
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		cmd.Process.Kill()
		t.Error("the program did not end")
	}
}
