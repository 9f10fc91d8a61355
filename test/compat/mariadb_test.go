package compat

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/starling-registry/starling/test/compat/drivers"
)

// These packages have the programs and no service that would start.
var mariaDBTools = []drivers.Tool{
	{Program: mariadbd(), Package: "mariadb-server-core"},
	{Program: "mariadb-install-db", Package: "mariadb-server-core"},
	{Program: "mariadb", Package: "mariadb-client-core"},
}

// mariadbd is where only administrators look for programs.
func mariadbd() string {
	if path, err := exec.LookPath("mariadbd"); err == nil {
		return path
	}
	return "/usr/sbin/mariadbd"
}

// mysqlCheck is a health check with the account that startMariaDB makes.
func mysqlCheck(password, command string) string {
	b, err := json.Marshal(map[string]string{"type": "MYSQL", "user": "probe", "pwd": password, "cmd": command})
	if err != nil {
		panic(err) // strings
	}
	return string(b)
}

// A mariaDB is a database server of its own, on a free port of 127.0.0.1, with its data in a folder
// that goes with the test. The machine's own service is not touched.
type mariaDB struct {
	t        *testing.T
	instance instance
	dir      string
	as       *syscall.SysProcAttr // never root, which it refuses
	cmd      *exec.Cmd
	exited   chan struct{}
}

// startMariaDB returns when the server answers. It skips the test if the machine has none; in CI that
// is a failure.
func startMariaDB(t *testing.T) *mariaDB {
	t.Helper()
	if missing := (&drivers.SDK{Tools: mariaDBTools}).Missing(); len(missing) > 0 {
		lacks(t, "health checks of a database", missing)
	}
	// Not below the run's folder, which is only root's, and short: the path of a socket has 107 bytes.
	dir, err := os.MkdirTemp("", "starling-mariadb-")
	if err != nil {
		t.Fatal(err)
	}
	db := &mariaDB{t: t, dir: dir, instance: inst(fmt.Sprintf("127.0.0.1:%d", freePorts(t))).Persistent(),
		as: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	t.Cleanup(func() {
		if db.exited != nil {
			db.cmd.Process.Kill()
			<-db.exited
		}
		if !t.Failed() {
			os.RemoveAll(dir)
		} else {
			t.Log("the database's log:", filepath.Join(dir, "log"))
		}
	})
	if os.Getuid() == 0 {
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		db.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	// Its temporary tables go into the folder, too: two of these at once have taken each other's away.
	install := exec.Command("mariadb-install-db", "--no-defaults", "--datadir="+filepath.Join(dir, "data"), "--tmpdir="+dir,
		"--auth-root-authentication-method=normal", "--skip-test-db")
	install.Dir, install.SysProcAttr = dir, db.as
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("mariadb-install-db: %v\n%s", err, out)
	}
	db.start()
	db.sql("CREATE USER probe@'127.0.0.1' IDENTIFIED BY 'secret'")
	return db
}

// start starts the process, with the data of the one before it, and returns when it answers.
func (db *mariaDB) start() {
	db.t.Helper()
	log, err := os.OpenFile(filepath.Join(db.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		db.t.Fatal(err)
	}
	defer log.Close() // the process has its own handle
	db.cmd = exec.Command(mariadbd(), "--no-defaults", "--datadir="+filepath.Join(db.dir, "data"), "--socket="+db.socket(),
		"--pid-file="+filepath.Join(db.dir, "pid"), "--bind-address="+db.instance.IP, "--port="+strconv.Itoa(db.instance.Port),
		"--skip-name-resolve", "--innodb-buffer-pool-size=8M", "--key-buffer-size=1M")
	db.cmd.Dir, db.cmd.SysProcAttr = db.dir, db.as
	db.cmd.Stdout, db.cmd.Stderr = log, log
	if err := db.cmd.Start(); err != nil {
		db.t.Fatal(err)
	}
	db.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(db.cmd, db.exited)
	var out []byte
	if !eventually(readyTimeout, func() bool { out, err = db.client("SELECT 1").CombinedOutput(); return err == nil }) {
		db.t.Fatalf("the database does not answer, see %s: %v\n%s", log.Name(), err, out)
	}
}

func (db *mariaDB) socket() string { return filepath.Join(db.dir, "socket") }

// client is a command of the database's administrator.
func (db *mariaDB) client(statement string) *exec.Cmd {
	return exec.Command("mariadb", "--no-defaults", "--socket="+db.socket(), "--user=root", "--execute="+statement)
}

func (db *mariaDB) sql(statement string) {
	db.t.Helper()
	if out, err := db.client(statement).CombinedOutput(); err != nil {
		db.t.Fatalf("%s: %v\n%s", statement, err, out)
	}
}

func (db *mariaDB) signal(s syscall.Signal) {
	db.t.Helper()
	if err := db.cmd.Process.Signal(s); err != nil {
		db.t.Fatal(err)
	}
}

// stop ends the process as a service manager does.
func (db *mariaDB) stop() {
	db.t.Helper()
	db.signal(syscall.SIGTERM)
	select {
	case <-db.exited:
	case <-time.After(stopTimeout):
		db.t.Fatalf("the database did not end %v after SIGTERM", stopTimeout)
	}
}
