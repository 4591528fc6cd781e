#include "trireme/nn/segments.h"

#include <cmath>

#include "trireme/layout/even_range.h"
#include "trireme/nn/recompute.h"

namespace trireme::nn {

namespace {

using Links = std::vector<const Link*>;

Segment segment_of(Links::const_iterator begin, Links::const_iterator end, bool recompute) {
  auto links = std::make_shared<std::vector<Link>>();
  for (auto one = begin; one != end; ++one) links->push_back(**one);
  return {std::move(links), recompute};
}

/// Cuts links that all count as layers.
void cut_layers(Links::const_iterator begin, Links::const_iterator end, std::vector<Segment>& to) {
  const int64_t layers = end - begin, length = segment_length(layers);
  const auto count = static_cast<int>((layers + length - 1) / length);
  for (int i = 0; i < count; ++i) {
    const Range one = even_range(layers, count, i);
    to.push_back(segment_of(begin + one.begin, begin + one.begin + one.count, true));
  }
}

}  // namespace

int64_t segment_length(int64_t layers) {
  return std::max<int64_t>(1,
                           static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(layers)))));
}

std::vector<Segment> sqrt_segments(const std::vector<const Link*>& links, LastSegment last) {
  std::vector<Segment> all;
  for (auto begin = links.begin(); begin != links.end();) {
    const bool counts = (*begin)->counts;
    const auto end =
        std::find_if(begin, links.end(), [&](const Link* one) { return one->counts != counts; });
    if (counts)
      cut_layers(begin, end, all);
    else
      all.push_back(segment_of(begin, end, false));
    begin = end;
  }
  if (last == LastSegment::Kept && !all.empty()) all.back().recompute = false;
  return all;
}

Flow Segment::forward(Flow in) const {
  const auto run = [all = links](Flow flow) {
    for (const Link& one : *all) flow = one.forward(std::move(flow));
    return flow;
  };
  if (!recompute) return run(std::move(in));
  std::vector<std::shared_ptr<LayerImpl>> layers;
  for (const Link& one : *links) layers.insert(layers.end(), one.layers.begin(), one.layers.end());
  return recomputed(std::move(in), run, layers);
}

}  // namespace trireme::nn
