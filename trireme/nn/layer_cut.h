#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/layout/layout.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/declared_parameters.h"
#include "trireme/nn/style.h"
#include "trireme/nn/tensor_region.h"

namespace trireme::nn {

class LayerImpl;

/// How the output of a layer is cut over the mesh, besides the samples, and the positions where the
/// Flow says so. A dim of -1 is the last one. Without a value nobody knows, and the prover does not
/// compare the output with that of one rank.
using OutputCuts = std::optional<std::vector<Cut>>;

/// How one layer is cut over the mesh, and the ranks that it computes with.
class LayerCut {
 public:
  void set(Style style, TensorRegionPtr region, std::shared_ptr<const Mesh> mesh);
  Style style() const { return style_; }
  /// nullptr until the layer is cut.
  const TensorRegionPtr& region() const { return region_; }
  /// The ranks along another axis, for layers that exchange tokens or positions; nullptr until the
  /// layer is cut.
  const comm::Communicator* group(Axis axis) const {
    return mesh_ != nullptr ? &mesh_->group(axis) : nullptr;
  }
  const std::shared_ptr<const Mesh>& mesh() const { return mesh_; }

  /// States the cuts of the output, for a layer whose style does not determine them.
  void set_output(OutputCuts output) { output_ = std::move(output); }
  /// `features`: the cut of the output's features that the style causes, if it causes one.
  OutputCuts output(std::optional<Cut> features) const;

 private:
  Style style_ = Style::Whole;
  TensorRegionPtr region_;
  std::shared_ptr<const Mesh> mesh_;
  std::optional<OutputCuts> output_;  // as stated by `set_output`
};

/// Throws MisuseError, with the numbers, unless the layer can be cut like this and every rank of
/// the mesh gets a part.
void check_cut(const LayerImpl& layer, Style style, const Mesh& mesh);

/// Throws MisuseError unless the experts of a layout can be dealt evenly to so many ranks.
void check_experts(const Layout& layout, int degree);

/// Reduces a whole layer to this rank's part. `nn::cut` of a plan calls it for each layer.
void cut_layer(LayerImpl& layer, Style style, const std::shared_ptr<const Mesh>& mesh,
               TensorRegionPtr region);

/// The same for a layer that is added beside one that is cut already; if that is not, nothing.
void cut_beside(LayerImpl& layer, Style style, const LayerImpl& other, const std::string& weight);

/// The layouts of a layer that computes with whole weights: Whole, Positions and Inside. Throws
/// MisuseError, which names the `layer_type`, for every other style.
Layouts layouts_of_whole(const DeclaredParameters& parameters, Style style, Sequence sequence,
                         const std::string& layer_type);

}  // namespace trireme::nn
