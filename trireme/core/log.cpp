#include "trireme/core/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "trireme/core/env.h"

namespace trireme::core {

struct Log::Sink {
  spdlog::logger logger;
};

Log::Log(int rank, std::string_view group)
    : sink_(new Sink{spdlog::logger(fmt::format("rank {} {}", rank, group),
                                    std::make_shared<spdlog::sinks::stderr_sink_mt>())}) {
  sink_->logger.set_pattern("%T.%e %l [%n] %v");
  sink_->logger.set_level(spdlog::level::from_str(env("TRIREME_LOG").value_or("warning")));
}

Log::~Log() = default;

void Log::debug(std::string_view text) const {
  sink_->logger.debug(text);
}
void Log::info(std::string_view text) const {
  sink_->logger.info(text);
}
void Log::warning(std::string_view text) const {
  sink_->logger.warn(text);
}
void Log::error(std::string_view text) const {
  sink_->logger.error(text);
}

}  // namespace trireme::core
