# What the scripts share. Each is called with the addresses of one node or several, and sends every
# request to the next of them, as a client does that goes round-robin. It says what it did not get and
# ends with 1.
set -euo pipefail

nodes=("$@")
[ ${#nodes[@]} -gt 0 ] || { echo "usage: $0 HOST:PORT…" >&2; exit 2; }
turn=0

# call METHOD PATH [ARGUMENT OF CURL…] sets status, type and body, to the last byte.
call() {
	local method=$1 path=$2 out
	shift 2
	node=${nodes[turn++ % ${#nodes[@]}]}
	request="$method http://$node/nacos$path $*"
	# The x keeps newlines at the end, which the shell would drop.
	out=$(curl -sS --max-time 5 -X "$method" -w '\n%{http_code} %{content_type}x' "$@" "http://$node/nacos$path") || fail "curl ended with $?"
	out=${out%x}
	body=${out%$'\n'*}
	status=${out##*$'\n'}
	type=${status#* } status=${status%% *}
}

fail() {
	printf '%s: %s\n  %s\n  %s %s\n  %s\n' "${0##*/}" "$1" "${request-}" "${status-}" "${type-}" "${body-}" >&2
	exit 1
}

# is BODY: a success that says exactly this.
is() {
	[ "$status" = 200 ] || fail "want status 200"
	[ "$body" = "$1" ] || fail "want the body '$1'"
}

has() {
	[ "$status" = 200 ] || fail "want status 200"
	[[ $body == *"$1"* ]] || fail "want '$1' in the body"
}

lacks() {
	[ "$status" = 200 ] || fail "want status 200"
	[[ $body != *"$1"* ]] || fail "want no '$1' in the body"
}

# ok METHOD PATH […]: a write, whose success clients know by these two letters.
ok() {
	call "$@"
	is ok
}

# shows PATH CHECK WANT […]: within five seconds, what one node has been told, all nodes say.
shows() {
	local path=$1 check=$2 want=$3 good=0
	shift 3
	for _ in {1..50}; do
		call GET "$path" "$@"
		if ("$check" "$want") 2>/dev/null; then
			good=$((good + 1))
			[ $good -lt ${#nodes[@]} ] || return 0
		else
			good=0
			sleep 0.1
		fi
	done
	"$check" "$want"
	fail "not the same everywhere"
}

# hosts prints ip, port and weight of each host of a list, one a line.
hosts() {
	grep -o '"ip":"[^"]*","port":[0-9]*,"weight":[0-9.]*' <<<"$body" | sed 's/"[a-z]*"://g; s/"//g; s/,/ /g' || true
}

# are HOSTS: the list has these, as printed by hosts, and no others.
are() {
	[ "$status" = 200 ] || fail "want status 200"
	[ "$(hosts)" = "$1" ] || fail "want the hosts '$1'"
}
