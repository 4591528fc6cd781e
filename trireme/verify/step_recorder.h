#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "trireme/train/trainer.h"
#include "trireme/verify/tensor_record.h"

namespace trireme::verify {

/// Records the tensors of a training step: the inputs, the weights in use, the output of every
/// layer, the loss, the gradients and their norm.
class StepRecorder {
 public:
  /// Attaches to every layer of the model. The hooks do nothing after this object is gone.
  StepRecorder(train::Trainer& trainer, const Mesh& mesh);
  ~StepRecorder() { *self_ = nullptr; }
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// Called before a step; records the weights and buffers that it starts from. `first_row`: the
  /// first of this rank's rows in the batch; `positions`: of each sequence, that this rank has;
  /// `micros`: how many micro-batches there are. Collective.
  void begin(const data::Batch& batch, int64_t first_row, const Positions& positions,
             int64_t micros);
  /// Called in the step, when the gradients are complete; divides them by `weight`. Collective.
  void record_gradients(double weight);
  /// Called after the step: returns its records, in the order of computation.
  std::vector<TensorRecord> end(const train::StepResult& result);

  /// The weights, trained or not, and the buffers, as they are now. Collective.
  std::vector<TensorRecord> state() const;

  /// Layers whose outputs cannot be compared: they declare no layout, run a different number of
  /// times in different micro-batches, or return something else than tensors with a row per sample.
  /// (If a layer returns several tensors, those of the first one's shape are cut as it is. Others
  /// are compared only if no axis cuts it.)
  const std::set<std::string>& skipped() const { return skipped_; }

 private:
  nn::Flow look(const nn::LayerImpl& layer, nn::Flow in, const nn::LayerImpl::Call& inner);
  std::vector<TensorRecord> weights() const;
  std::vector<TensorRecord> buffers() const;
  void record_output(const nn::LayerImpl& layer, const nn::Flow& out);
  void record_tensor(const std::string& name, std::vector<Cut> cuts, const nn::Flow& out,
                     const at::Tensor& tensor);

  train::Trainer& trainer_;
  const Mesh& mesh_;
  bool recording_ = false, looked_ = false;
  int64_t first_row_ = 0, rows_ = 0, micros_ = 1;
  std::vector<TensorRecord> inputs_, weights_, buffers_, gradients_;
  struct Calls {
    std::vector<Cut> cuts;
    std::vector<Range> positions;
    std::vector<std::pair<int64_t, at::Tensor>> outputs;  // with the micro-batch of each
  };
  std::map<std::string, Calls> calls_;
  std::vector<std::string> order_;  // of the layers, by their first output
  std::set<std::string> skipped_;
  std::shared_ptr<StepRecorder*> self_ = std::make_shared<StepRecorder*>(this);
};

}  // namespace trireme::verify
