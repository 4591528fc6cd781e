#pragma once

#include <string>
#include <vector>

#include "trireme/config/config.h"
#include "trireme/layout/degrees.h"

namespace trireme::cli {

/// `trireme-rank bench-comm`: times the collectives of one backend. Returns the exit code.
int bench_comm(const std::vector<std::string>& args);

/// The mesh for `ranks` ranks. Throws ConfigError for what this mesh or this machine cannot do.
/// Every rank calls it before it joins the others, so that all of them fail in the same way.
Degrees refuse_early(const config::Config& config, int ranks);

/// `trireme-rank train CONFIG [KEY=VALUE]...`: one rank of a run. `train-check`: prints the mesh
/// and the memory that it would take.
int train(const std::vector<std::string>& args);
int train_check(const std::vector<std::string>& args);

/// `trireme-rank mesh-check SPEAKER CONFIG [KEY=VALUE]...`: whether the mesh fits; errors begin
/// with SPEAKER, the command that the user typed.
int mesh_check(const std::vector<std::string>& args);

/// `trireme-rank verify STEPS JSON_FILE MISTAKE CONFIG [KEY=VALUE]...`: one rank of a proof.
int verify(const std::vector<std::string>& args);

/// `trireme-rank eval FOLDER SVG_FILE CONFIG [KEY=VALUE]...`: one rank that measures a model.
int eval(const std::vector<std::string>& args);

/// `trireme-rank generate CHECKPOINT PROMPT TOKENS TEMPERATURE TOP_P SEED TENSOR TOKENIZER DEVICE
/// DTYPE chat|text`: one rank of those that continue a text.
int generate(const std::vector<std::string>& args);

/// `trireme-rank bench-train CONFIG [KEY=VALUE]...`: times steps on ready batches.
int bench_train(const std::vector<std::string>& args);

/// `trireme-rank bench-checkpoint FOLDER BYTES REPEAT`: times saving and loading.
int bench_checkpoint(const std::vector<std::string>& args);

/// `trireme-rank data-make OUT KIND TOKENS VOCAB SEED`: writes a generated language.
int data_make(const std::vector<std::string>& args);

/// `trireme-rank doctor`: prints which libtorch this is, and tries what the GPU needs.
/// `doctor-ranks`: an all-reduce of two ranks. `doctor-gpu-ranks`: the same of CUDA tensors, if
/// libtorch finds a GPU.
int doctor(const std::vector<std::string>& args);
int doctor_ranks(const std::vector<std::string>& args);
int doctor_gpu_ranks(const std::vector<std::string>& args);

}  // namespace trireme::cli
