package envoy

import (
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// metadata returns the dynamic metadata of the call r: its domain, its descriptors and its number
// of hits. The result also contains the metadata from the file for each descriptor that is within
// its limit.
func metadata(r *ratelimit.RateLimitRequest, ds []hit,
	statuses []*ratelimit.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	var descriptors []any
	for _, d := range r.Descriptors {
		var entries []any
		for _, e := range d.GetEntries() {
			entries = append(entries, e.GetKey()+"="+e.GetValue())
		}
		fields := map[string]any{"entries": entries}
		if l := d.GetLimit(); l != nil {
			fields["limit"] = strings.TrimSpace(l.String())
		}
		if h := d.GetHitsAddend(); h != nil {
			fields["hitsAddend"] = h.Value
		}
		descriptors = append(descriptors, fields)
	}
	fields := map[string]any{"domain": r.Domain, "descriptors": descriptors}
	if r.HitsAddend != 0 {
		fields["hitsAddend"] = r.HitsAddend
	}
	all, err := structpb.NewStruct(fields)
	if err != nil { // a text is not UTF-8, which gRPC refuses
		return nil
	}
	own := &structpb.Struct{}
	for i := range ds {
		if h := &ds[i]; h.limit != nil && statuses[i].Code == ratelimit.RateLimitResponse_OK {
			addFields(own, h.metadata)
		}
	}
	if len(own.Fields) > 0 {
		all.Fields["metadata"] = structpb.NewStructValue(own)
	}
	return all
}

// addFields copies the fields of src into dst. If both have a field, the value in dst is kept,
// except that two objects are merged.
func addFields(dst, src *structpb.Struct) {
	for name, value := range src.GetFields() {
		old := dst.Fields[name]
		switch {
		case old.GetStructValue() != nil:
			addFields(old.GetStructValue(), value.GetStructValue())
		case old == nil && dst.Fields == nil:
			dst.Fields = map[string]*structpb.Value{name: proto.CloneOf(value)}
		case old == nil:
			dst.Fields[name] = proto.CloneOf(value)
		}
	}
}
