package envoy

import (
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// metadata returns the dynamic metadata of the call r: its domain, its descriptors, its number
// of hits, whether a limit has quota_mode, and the indexes of descriptors that are over their
// limit.
func metadata(r *ratelimit.RateLimitRequest, over []int, quotaMode bool) *structpb.Struct {
	list := func(values []*structpb.Value) *structpb.Value {
		return structpb.NewListValue(&structpb.ListValue{Values: values})
	}
	var descriptors, violations []*structpb.Value
	for _, d := range r.Descriptors {
		var entries []*structpb.Value
		for _, e := range d.GetEntries() {
			entries = append(entries, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
		}
		fields := map[string]*structpb.Value{"entries": list(entries)}
		if l := d.GetLimit(); l != nil {
			fields["limit"] = structpb.NewStringValue(strings.TrimSpace(l.String()))
		}
		if h := d.GetHitsAddend(); h != nil {
			fields["hitsAddend"] = structpb.NewNumberValue(float64(h.Value))
		}
		descriptors = append(descriptors, structpb.NewStructValue(&structpb.Struct{Fields: fields}))
	}
	fields := map[string]*structpb.Value{
		"domain": structpb.NewStringValue(r.Domain), "descriptors": list(descriptors), "quotaModeEnabled": structpb.NewBoolValue(quotaMode),
	}
	if r.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(r.HitsAddend))
	}
	for _, i := range over {
		violations = append(violations, structpb.NewNumberValue(float64(i)))
	}
	if len(violations) > 0 {
		fields["quotaModeViolations"] = list(violations)
	}
	return &structpb.Struct{Fields: fields}
}
