#include "trireme/nn/layer_cut.h"

#include "trireme/core/error.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

void LayerCut::set(Style style, TensorRegionPtr region, std::shared_ptr<const Mesh> mesh) {
  style_ = style;
  region_ = std::move(region);
  mesh_ = std::move(mesh);
}

OutputCuts LayerCut::output(std::optional<Cut> features) const {
  if (output_) return *output_;
  if (region_ != nullptr && style_ == Style::Inside) return std::nullopt;
  std::vector<Cut> cuts;
  if (features) cuts.push_back(std::move(*features));
  return cuts;
}

/// Every rank has as many experts: the tokens of a rank are sent to ranks, and sorted there.
void check_experts(const Layout& layout, int degree) {
  for (const Cut& cut : layout.cuts()) {
    const int64_t experts = layout.whole()[static_cast<std::size_t>(cut.dim)];
    core::check(cut.axis != Axis::Expert || experts % degree == 0,
                "{} experts cannot be dealt evenly to expert {}: use a divisor of {}", experts,
                degree, experts);
  }
}

void check_cut(const LayerImpl& layer, Style style, const Mesh& mesh) {
  core::check(layer.region() == nullptr, "it is cut already, by {}", to_string(layer.style()));
  core::check(!layer.declared().is_initialized(),
              "it has its values already; cut before nn::initialize");
  core::check(style == Style::Whole || style == Style::Positions || layer.buffers().empty() ||
                  mesh.size(Axis::Tensor) == 1,
              "it has buffers, which are whole on every rank: a layer that is cut by {} cannot use "
              "them",
              to_string(style));
  for (const auto& [name, layout] : layer.layouts(style, Sequence::Whole)) {
    check_experts(layout, mesh.size(Axis::Expert));
    layout.check_fits(mesh.degrees());
  }
}

void cut_layer(LayerImpl& layer, Style style, const std::shared_ptr<const Mesh>& mesh,
               TensorRegionPtr region) {
  const Sequence sequence = region->cuts_positions() ? Sequence::Cut : Sequence::Whole;
  layer.declared().cut(layer.layouts(style, sequence), mesh->coord(), mesh->degrees());
  layer.cut().set(style, std::move(region), mesh);
}

void cut_beside(LayerImpl& layer, Style style, const LayerImpl& other, const std::string& weight) {
  const TensorRegionPtr& region = other.region();
  if (region == nullptr) return;
  const Sequence sequence = region->cuts_positions() ? Sequence::Cut : Sequence::Whole;
  const DeclaredParameter& place = *other.declared().find(weight);
  layer.declared().cut(layer.layouts(style, sequence), place.coord, place.degrees);
  layer.cut().set(style, region, other.cut().mesh());
}

Layouts layouts_of_whole(const DeclaredParameters& parameters, Style style, Sequence sequence,
                         const std::string& layer_type) {
  core::check(style == Style::Whole || style == Style::Positions || style == Style::Inside,
              "a {} cannot be cut by {}; it can be whole, inside, or work on positions", layer_type,
              to_string(style));
  // If each rank sees only a part of the features or positions, its gradients are partial sums.
  const bool is_partial =
      style == Style::Inside || (style == Style::Positions && sequence == Sequence::Cut);
  return parameters.whole_layouts(is_partial ? std::vector{Axis::Tensor} : std::vector<Axis>{});
}

}  // namespace trireme::nn
