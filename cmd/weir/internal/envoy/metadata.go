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
	var descriptors []*structpb.Value
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
	fields := map[string]*structpb.Value{"domain": structpb.NewStringValue(r.Domain), "descriptors": list(descriptors)}
	if r.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(r.HitsAddend))
	}
	own := &structpb.Struct{}
	for i := range ds {
		if a := &ds[i]; a.limit != nil && statuses[i].Code == ratelimit.RateLimitResponse_OK {
			addFields(own, a.metadata)
		}
	}
	if len(own.Fields) > 0 {
		fields["metadata"] = structpb.NewStructValue(own)
	}
	return &structpb.Struct{Fields: fields}
}

func list(values []*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: values})
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
