package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/configfile"
)

// envPrefix is the prefix of the environment variables of flags.
const envPrefix = "WEIR_"

// envName returns the name of the environment variable of a flag: WEIR_REDIS_ADDRS for redis-addrs.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// kubernetes matches the variables that Kubernetes sets in each container for each service
// of its namespace: WEIR_SERVICE_HOST, WEIR_PORT=tcp://10.0.0.1:80 and WEIR_PORT_80_TCP_ADDR
// for a service named weir, WEIR_REDIS_SERVICE_HOST for a service named weir-redis.
var kubernetes = regexp.MustCompile(`^WEIR_([A-Z0-9_]+_)?(SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=\d|PORT=(tcp|udp|sctp)://|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?=)`)

// meantVariables maps variables of other programs, with envPrefix, to the variables of weir that
// are probably meant.
var meantVariables = map[string]string{"WEIR_REDIS_URL": "REDIS_URL", "WEIR_REDIS_HOST": "WEIR_REDIS_ADDRS"}

// For flags that are missing on the command line, setFromEnvironment takes the values from the
// environment and from files. Only flags whose names begin with the given prefix are set. If the
// prefix is empty, an unknown variable that resembles the variable of a flag is an error, because
// without the intended value weir might count in memory, and nobody would notice. With an empty
// prefix, any other unknown variable that begins with WEIR_ causes a warning.
func setFromEnvironment(fs *flag.FlagSet, prefix string, environ []string) (warnings []string, err error) {
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	flags := map[string]string{} // by variable
	fs.VisitAll(func(f *flag.Flag) { flags[envName(f.Name)] = f.Name })
	known := slices.Sorted(maps.Keys(flags))
	var errs []error
	for _, variable := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, envPrefix) || kubernetes.MatchString(variable) {
			continue
		}
		f := flags[name]
		switch {
		case given[f] || !strings.HasPrefix(f, prefix):
			continue
		case f == "":
			meant := cmp.Or(meantVariables[name], configfile.Nearest(name, known, 1+(len(name)-len(envPrefix))/5))
			if meant == "" {
				warnings = append(warnings, fmt.Sprintf("the environment variable %s sets no flag", name))
			} else {
				errs = append(errs, fmt.Errorf("%s sets no flag; did you mean %s?", name, meant))
			}
			continue
		}
		if n := len(value) - 1; n > 0 && value[0] == value[n] && strings.Contains(`"'`, value[:1]) {
			warnings = append(warnings, "the value of "+name+" is in quotation marks, which belong to it; in a file for docker --env-file, omit them")
		}
		if err := fs.Set(f, value); err != nil {
			if slices.Contains(secrets, f) {
				value = "…"
			}
			if want := wanted(fs.Lookup(f)); want != "" {
				err = errors.New("want " + want)
			}
			errs = append(errs, fmt.Errorf("%s is %q: %w", name, value, err))
		}
	}
	return warnings, errors.Join(append(errs, setFromFiles(fs))...)
}

// invalidFlag matches an error that does not say what values a flag has.
var invalidFlag = regexp.MustCompile(`(?s)^(invalid .* (?:flag )?-([a-z-]+): )(?:parse error$|slog: )`)

// parseFlags parses a command line. Its errors say what values a flag has.
func parseFlags(fs *flag.FlagSet, args []string) error {
	err := fs.Parse(args)
	if err == nil {
		return nil
	}
	if m := invalidFlag.FindStringSubmatch(err.Error()); m != nil {
		return errors.New(m[1] + "want " + wanted(fs.Lookup(m[2])))
	}
	return err
}

// wanted describes the valid values of a flag whose type belongs to package flag, because the
// errors of that package say only "parse error". For other flags, wanted returns "".
func wanted(f *flag.Flag) string {
	v, ok := f.Value.(flag.Getter)
	if !ok {
		return ""
	}
	switch v.Get().(type) {
	case time.Duration:
		return "a duration with its unit, such as 50ms or 1m30s"
	case bool:
		return "true or false"
	case int, int64:
		return "a whole number"
	case float64:
		return "a number"
	case *slog.Level:
		return "debug, info, warn or error"
	}
	return ""
}

// secrets are the flags whose values must stay secret. Each secret can also be set by a file:
// -admin-token-file names a file whose content is the value of -admin-token.
var secrets = []string{"admin-token", "key-secret", "redis-password", "redis-sentinel-password"}

const inFile = "-file"

// fileFlag adds the flag that names the file of a secret.
func fileFlag(fs *flag.FlagSet, path *string, secret, when string) {
	fs.StringVar(path, secret+inFile, "", "`file` whose content is the value of -"+secret+", without the line end; read "+when)
}

// setFromFiles sets the flags in secrets from the files that other flags name.
func setFromFiles(fs *flag.FlagSet) error {
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	var errs []error
	for _, name := range secrets {
		f := fs.Lookup(name + inFile)
		if f == nil || f.Value.String() == "" {
			continue
		}
		value, err := readSecret(f.Value.String())
		switch {
		case set[name]:
			err = fmt.Errorf("-%s is set, too", name)
		case err == nil:
			err = fs.Set(name, value)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("-%s: %w", name+inFile, err))
		}
	}
	return errors.Join(errs...)
}

// readSecret returns the content of a file without the line end.
func readSecret(path string) (string, error) {
	text, err := configfile.Read(path)
	value := strings.TrimRight(string(text), "\r\n")
	if err == nil && value == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return value, err
}

// hasSecret reports whether an environment sets the secret of hashed keys.
func hasSecret(environ []string) bool {
	return slices.ContainsFunc(environ, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name == envName("key-secret") || name == envName("key-secret"+inFile)
	})
}
