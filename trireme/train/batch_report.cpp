#include "trireme/train/batch_report.h"

#include <algorithm>

#include "trireme/core/json.h"

namespace trireme::train {

std::string BatchReport::to_text() const {
  core::Json json = {
      {"loss", loss},        {"weight", weight}, {"grad_norm", grad_norm}, {"lr", lr},
      {"data_ms", data_ms},  {"missed", missed}, {"repeated", repeated},   {"pss_mib", pss_mib},
      {"sent_mib", sent_mib}};
  if (eval_loss) json["eval_loss"] = *eval_loss;
  if (eval_accuracy) json["eval_accuracy"] = *eval_accuracy;
  return json.dump();
}

BatchReport BatchReport::parse(const std::string& text) {
  const core::Json json = core::parse_json(text, "a worker's report");
  const auto number = [&](const char* key) {  // JSON has no nan
    return json.at(key).is_null() ? std::numeric_limits<double>::quiet_NaN()
                                  : json.at(key).get<double>();
  };
  BatchReport report{.loss = number("loss"),
                     .weight = number("weight"),
                     .grad_norm = number("grad_norm"),
                     .lr = number("lr"),
                     .data_ms = number("data_ms"),
                     .missed = json.at("missed"),
                     .repeated = json.at("repeated"),
                     .pss_mib = json.at("pss_mib"),
                     .sent_mib = number("sent_mib")};
  if (json.contains("eval_loss")) report.eval_loss = number("eval_loss");
  if (json.contains("eval_accuracy")) report.eval_accuracy = number("eval_accuracy");
  return report;
}

StepReport step_of(int64_t step, const std::map<ps::Batch, std::string>& reports, ps::Batch first,
                   uint32_t batches, bool lockstep) {
  StepReport line;
  line.step = step;
  std::map<int64_t, int64_t> staleness;
  int64_t repeated = 0;
  double sent = 0;
  for (ps::Batch batch = first; batch < first + batches; ++batch) {
    const BatchReport one = BatchReport::parse(reports.at(batch));
    if (!lockstep) {
      line.loss += one.loss;
      line.weight += one.weight;
      line.grad_norm += one.weight * one.grad_norm;
    } else if (one.weight > 0) {  // all have the sums of all
      line.loss = one.loss;
      line.weight = one.weight;
      line.grad_norm = one.grad_norm;
    }
    line.lr = one.lr;
    line.data_ms = std::max(line.data_ms, one.data_ms);
    line.pss_mib = std::max(line.pss_mib, one.pss_mib);
    sent += one.sent_mib;
    repeated += one.repeated ? 1 : 0;
    if (one.weight > 0) ++staleness[one.missed];
    if (one.eval_loss) line.eval_loss = one.eval_loss;
    if (one.eval_accuracy) line.eval_accuracy = one.eval_accuracy;
  }
  line.loss /= line.weight;  // not a number if nothing counted
  if (!lockstep && line.weight > 0) line.grad_norm /= line.weight;
  line.sent_mib = sent;
  line.repeated = repeated;
  if (!lockstep) line.staleness = std::move(staleness);
  return line;
}

}  // namespace trireme::train
