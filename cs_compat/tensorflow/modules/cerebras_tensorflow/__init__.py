"""TensorFlow programs of the appliance generation, releases 1.6 to 1.8, import the estimator from here."""
