"""The output layers and networks in TensorFlow, as Keras layers and behind the NumPy contract."""

import os

# TensorFlow and Keras read both when they are imported: log errors only, and run Keras on TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
