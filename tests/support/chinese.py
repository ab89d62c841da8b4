"""The words of the field that a Chinese report has."""

EIGHT_ROWS = ["输出数", "回复长度", "rollout_log_probs 长度", "结束原因", "奖励", "优势", "loss", "梯度范数"]
